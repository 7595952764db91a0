CREATE OR REPLACE FUNCTION @schema@.tube_column_versions("table" regclass) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT jsonb_object_agg(a.attnum, a.xmin::text) FROM pg_attribute a
             WHERE a.attrelid = "table" AND a.attnum > 0 AND NOT a.attisdropped);
END
$$;
COMMENT ON FUNCTION @schema@.tube_column_versions(regclass) IS
    'Returns the versions of the columns of a table in the catalog: each alteration of a column, and each parent, changes them.';
