CREATE OR REPLACE FUNCTION @schema@.tube_columns("table" regclass) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT jsonb_object_agg(a.attnum, jsonb_strip_nulls(jsonb_build_object(
                       'name', a.attname, 'type', a.atttypid::regtype::text,
                       -- Below this number are the types of the server, which are never altered.
                       'parts', CASE WHEN a.atttypid >= 16384 THEN @schema@.tube_type_parts(a.atttypid) END,
                       'expression', CASE WHEN a.attgenerated <> '' THEN pg_get_expr(d.adbin, d.adrelid) END)))
              FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
             WHERE a.attrelid = "table" AND a.attnum > 0 AND NOT a.attisdropped);
END
$$;
COMMENT ON FUNCTION @schema@.tube_columns(regclass) IS
    'Returns the columns of a table by number: what the values of all rows depend on, besides the rows.';
