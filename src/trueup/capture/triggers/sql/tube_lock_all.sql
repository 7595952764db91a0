CREATE OR REPLACE FUNCTION @schema@.tube_lock_all(tube text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held integer;
BEGIN
    -- No session can take a lock until the transaction ends.
    LOCK TABLE @schema@.holders IN SHARE ROW EXCLUSIVE MODE;
    SELECT min(h.partition) INTO held FROM @schema@.holders h
     WHERE h.tube = tube_lock_all.tube AND h.pid <> pg_backend_pid()
       AND @schema@.tube_holder(h.tube, h.partition) IS NOT NULL;
    IF held IS NOT NULL THEN
        RAISE EXCEPTION 'partition % of the tube % is locked by a worker', held, tube
            USING ERRCODE = 'object_in_use', HINT = 'stop the workers of the tube first';
    END IF;
END
$$;
COMMENT ON FUNCTION @schema@.tube_lock_all(text) IS
    'Locks all partitions of a tube until the end of the transaction; raises an error if one is locked.';
