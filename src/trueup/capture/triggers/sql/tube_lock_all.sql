CREATE OR REPLACE FUNCTION @schema@.tube_lock_all(tube text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    partition integer;
BEGIN
    FOR partition IN SELECT generate_series(0, t.partitions - 1) FROM @schema@.tubes t
                      WHERE t.tube = tube_lock_all.tube LOOP
        IF NOT pg_try_advisory_xact_lock(@schema@.tube_lock_key(tube, partition)) THEN
            RAISE EXCEPTION 'somebody works on partition % of the tube %', partition, tube
                USING ERRCODE = 'object_in_use', HINT = 'stop the workers of the tube first';
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION @schema@.tube_lock_all(text) IS
    'Takes the locks of all partitions of a tube until the transaction ends; an error if one is taken.';
