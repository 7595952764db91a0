CREATE OR REPLACE FUNCTION @schema@.tube_pods_table(tube text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN format('%I.%I', '@schema@', 'pods_' || tube);
END
$$;
COMMENT ON FUNCTION @schema@.tube_pods_table(text) IS 'Returns the quoted name of the table with the pods of a tube.';
