CREATE OR REPLACE FUNCTION @schema@.tube_infer_shard("table" regclass) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    by_schema text;
    by_table text;
BEGIN
    SELECT substring(n.nspname FROM '(\d{1,18})\D*$'), substring(c.relname FROM '(\d{1,18})$')
      INTO by_schema, by_table
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = "table";
    IF coalesce(by_schema, by_table) IS NULL THEN
        RAISE EXCEPTION 'no shard specified for %, and its name contains no number', "table"
            USING ERRCODE = 'invalid_parameter_value', HINT = 'specify --shard or --routing';
    ELSIF by_schema::bigint <> by_table::bigint THEN
        RAISE EXCEPTION 'no shard specified for %, and schema and table contain different numbers: % and %',
            "table", by_schema, by_table
            USING ERRCODE = 'invalid_parameter_value', HINT = 'specify --shard or --routing';
    END IF;
    RETURN coalesce(by_schema, by_table)::bigint;
END
$$;
COMMENT ON FUNCTION @schema@.tube_infer_shard(regclass) IS
    'Returns the number in the name of the schema, or at the end of the name of the table.';
