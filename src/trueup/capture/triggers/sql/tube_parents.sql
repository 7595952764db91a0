CREATE OR REPLACE FUNCTION @schema@.tube_parents("table" regclass) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN jsonb_build_object(
        'has_parent', EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = "table"),
        'columns', @schema@.tube_column_versions("table"),
        -- Everything that is changed for another reason than a parent. Not attmissingval: it has a type of the owner of the
        -- table, whose functions must not be called.
        'definitions', (SELECT jsonb_object_agg(a.attnum, md5(concat_ws('/', a.attname, a.atttypid, a.atttypmod, a.attcollation,
                                   a.attnotnull, a.atthasdef, a.atthasmissing, a.attidentity, a.attgenerated, a.attstorage,
                                   a.attcompression, coalesce(a.attstattarget, -1), coalesce(a.attacl::text, ''),
                                   coalesce(a.attoptions::text, ''), coalesce(d.oid, 0))))
                          FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
                         WHERE a.attrelid = "table" AND a.attnum > 0 AND NOT a.attisdropped));
END
$$;
COMMENT ON FUNCTION @schema@.tube_parents(regclass) IS
    'Returns whether a table is a partition or a child of another one, and the versions and definitions of its columns: see '
    'tube_inherited.';
