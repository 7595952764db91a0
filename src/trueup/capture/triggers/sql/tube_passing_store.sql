CREATE OR REPLACE FUNCTION @schema@.tube_passing_store(source integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    passed jsonb;
BEGIN
    SELECT jsonb_agg(jsonb_build_object('relation', r.relation::oid, 'attached', a.attached)) INTO passed
      FROM @schema@.sources s
     CROSS JOIN LATERAL @schema@.tube_relations(s."table") r(relation)
     CROSS JOIN LATERAL (SELECT @schema@.tube_attachment(r.relation) AS attached) a
     WHERE s.source = tube_passing_store.source AND s.detached_at IS NULL
       AND r.relation <> s."table" AND r.relation <> ALL (s.covered)
       AND NOT EXISTS (SELECT FROM @schema@.passing p
                        WHERE p.source = s.source AND p.relation = r.relation AND p.attached = a.attached);
    IF passed IS NOT NULL THEN
        INSERT INTO @schema@.passing (source, relation, attached)
        SELECT tube_passing_store.source, p.relation, p.attached FROM jsonb_to_recordset(passed) p(relation oid, attached text);
    END IF;
END
$$;
COMMENT ON FUNCTION @schema@.tube_passing_store(integer) IS
    'Stores the partitions that tube_cover does not know yet, because their rows will be read: see tube_passing.';
