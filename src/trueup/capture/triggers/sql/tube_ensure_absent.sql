CREATE OR REPLACE FUNCTION @schema@.tube_ensure_absent(tube text, patience interval DEFAULT '30 s') RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s record;
BEGIN
    IF NOT EXISTS (SELECT FROM @schema@.tubes t WHERE t.tube = tube_ensure_absent.tube) THEN
        RETURN;
    END IF;
    -- Drop the triggers first: concurrent writers wait for the lock on their table, never for the pods.
    FOR s IN SELECT x."table" FROM @schema@.sources x
              WHERE x.tube = tube_ensure_absent.tube AND x.detached_at IS NULL ORDER BY x."table" LOOP
        PERFORM @schema@.tube_table_ensure_detached(tube, s."table", patience);
    END LOOP;
    EXECUTE format('DROP TABLE IF EXISTS %s', @schema@.tube_pods_table(tube));
    DELETE FROM @schema@.tubes t WHERE t.tube = tube_ensure_absent.tube;
END
$$;
COMMENT ON FUNCTION @schema@.tube_ensure_absent(text, interval) IS
    'Detaches all tables of a tube and drops it with its waiting pods.';
