CREATE OR REPLACE FUNCTION @schema@.tube_lock_key(tube text, partition integer) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN hashtextextended(format('trueup tube @schema@.%s/%s', tube, partition), 0);
END
$$;
COMMENT ON FUNCTION @schema@.tube_lock_key(text, integer) IS
    'Returns the key of the advisory lock that the worker of a partition holds.';
