CREATE OR REPLACE FUNCTION @schema@.tube_get(tube text) RETURNS @schema@.tubes
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_tube @schema@.tubes;
BEGIN
    SELECT t.* INTO found_tube FROM @schema@.tubes t WHERE t.tube = tube_get.tube;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the tube % does not exist', coalesce(quote_literal(tube), 'NULL')
            USING ERRCODE = 'undefined_object', HINT = 'create it with trueup tube ensure; trueup tube list shows all tubes';
    END IF;
    RETURN found_tube;
END
$$;
COMMENT ON FUNCTION @schema@.tube_get(text) IS 'Returns a tube by name; raises an error if it does not exist.';
