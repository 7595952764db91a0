CREATE OR REPLACE FUNCTION @schema@.tube_triggers(source integer) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (
        -- With the version of the attachment, because the server creates triggers of a partition when it is attached.
        SELECT coalesce(jsonb_object_agg(r.relation::oid, t.versions || jsonb_build_object('', i.xmin)), '{}')
          FROM @schema@.sources s
         CROSS JOIN LATERAL @schema@.tube_relations(s."table") r(relation)
         CROSS JOIN LATERAL (
               -- A trigger that was disabled and enabled again, or created again, has another row.
               SELECT jsonb_object_agg(g.tgname, concat_ws(' ', g.oid, g.xmin)) AS versions FROM pg_trigger g
                WHERE g.tgrelid = r.relation AND starts_with(g.tgname, '@schema@_' || s.tube || '_')
                  -- A longer rest belongs to a tube whose name starts with the name of this tube.
                  AND strpos(substr(g.tgname, length('@schema@_' || s.tube || '_') + 1), '_') = 0) t
          LEFT JOIN pg_inherits i ON i.inhrelid = r.relation AND r.relation <> s."table"
         WHERE s.source = tube_triggers.source AND t.versions IS NOT NULL);
END
$$;
COMMENT ON FUNCTION @schema@.tube_triggers(integer) IS
    'Returns the versions of the triggers of an attached table and its partitions in the catalog: see tube_triggers_changed.';
