CREATE OR REPLACE FUNCTION @schema@.tube_lock_all(tube text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    partition integer;
BEGIN
    FOR partition IN SELECT generate_series(0, t.partitions - 1) FROM @schema@.tubes t
                      WHERE t.tube = tube_lock_all.tube LOOP
        IF NOT pg_try_advisory_xact_lock(@schema@.tube_lock_key(tube, partition)) THEN
            RAISE EXCEPTION 'partition % of the tube % is locked by a worker', partition, tube
                USING ERRCODE = 'object_in_use', HINT = 'stop the workers of the tube first';
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION @schema@.tube_lock_all(text) IS
    'Locks all partitions of a tube until the end of the transaction; raises an error if one is locked.';
