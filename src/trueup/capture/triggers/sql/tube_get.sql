CREATE OR REPLACE FUNCTION @schema@.tube_get(tube text) RETURNS @schema@.tubes
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_tube @schema@.tubes;
BEGIN
    SELECT t.* INTO found_tube FROM @schema@.tubes t WHERE t.tube = tube_get.tube;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no tube %', coalesce(quote_literal(tube), 'NULL')
            USING ERRCODE = 'undefined_object', HINT = 'tube_ensure_exists makes one; tube_list shows all';
    END IF;
    RETURN found_tube;
END
$$;
COMMENT ON FUNCTION @schema@.tube_get(text) IS 'The tube of this name, or an error.';
