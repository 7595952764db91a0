CREATE OR REPLACE FUNCTION @schema@.tube_passing(source integer, passed jsonb DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM jsonb_to_recordset(coalesce(passed, (
                   SELECT jsonb_agg(r) FROM (SELECT DISTINCT x.relation, x.attached FROM @schema@.passing x
                                              WHERE x.source = tube_passing.source) r))) p(relation oid, attached text)
          JOIN @schema@.sources s ON s.source = tube_passing.source
         WHERE p.relation <> ALL (s.covered::oid[])
           AND (p.relation NOT IN (SELECT r::oid FROM @schema@.tube_relations(s."table") r)
                OR p.attached IS DISTINCT FROM @schema@.tube_attachment(p.relation)));
END
$$;
COMMENT ON FUNCTION @schema@.tube_passing(integer, jsonb) IS
    'Returns whether a partition whose rows are in the copy was removed, or attached again, before tube_cover knew it; '
    'passed: rows of the table passing that tube_cover has removed.';
