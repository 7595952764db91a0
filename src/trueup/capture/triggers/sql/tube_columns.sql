CREATE OR REPLACE FUNCTION @schema@.tube_columns("table" regclass) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT jsonb_object_agg(a.attnum, jsonb_build_object('name', a.attname, 'type', a.atttypid::regtype::text))
              FROM pg_attribute a WHERE a.attrelid = "table" AND a.attnum > 0 AND NOT a.attisdropped);
END
$$;
COMMENT ON FUNCTION @schema@.tube_columns(regclass) IS 'Returns the columns of a table with their types, by number.';
