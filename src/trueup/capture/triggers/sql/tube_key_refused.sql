CREATE OR REPLACE FUNCTION @schema@.tube_key_refused(reason text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION '%', reason USING ERRCODE = 'invalid_parameter_value',
        HINT = 'write a key as the text of its column, a key of several columns as a JSON array of texts: ["a", "1"]';
END
$$;
COMMENT ON FUNCTION @schema@.tube_key_refused(text) IS
    'Raises an error about a key that cannot be touched; returns nothing, and is called in expressions.';
