CREATE OR REPLACE FUNCTION @schema@.tube_storage("table" regclass) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN jsonb_build_object(
        'place', @schema@.tube_key_place("table"),
        'files', (SELECT coalesce(jsonb_object_agg(c.oid, c.relfilenode), '{}') FROM @schema@.tube_relations("table") r(relation)
                    JOIN pg_class c ON c.oid = r.relation WHERE c.relkind = 'r'),
        -- A partition that was detached and attached again has another row.
        'attached', (SELECT coalesce(jsonb_object_agg(i.inhrelid, i.xmin::text), '{}')
                       FROM @schema@.tube_relations("table") r(relation) JOIN pg_inherits i ON i.inhrelid = r.relation
                      WHERE r.relation <> "table"),
        'columns', @schema@.tube_column_versions("table"));
END
$$;
COMMENT ON FUNCTION @schema@.tube_storage(regclass) IS
    'Returns the files of a table and its partitions, and the versions of its columns and of its partitions in the catalog: '
    'see tube_rewritten and tube_reattached.';
