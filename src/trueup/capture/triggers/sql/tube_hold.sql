CREATE OR REPLACE FUNCTION @schema@.tube_hold(tube text, partition integer) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @schema@.tube_get(tube);
    -- The row of a session that has ended is replaced. Other roles may not see when a session began: then the process counts.
    INSERT INTO @schema@.holders AS h (tube, partition, pid, since)
    SELECT tube_hold.tube, tube_hold.partition, a.pid, a.backend_start FROM pg_stat_activity a WHERE a.pid = pg_backend_pid()
        ON CONFLICT ON CONSTRAINT holders_pkey DO UPDATE SET pid = excluded.pid, since = excluded.since
     WHERE NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = h.pid AND a.pid <> pg_backend_pid()
                          AND coalesce(a.backend_start = h.since, true));
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION @schema@.tube_hold(text, integer) IS
    'Takes the lock of a partition for this session; returns false if another session holds it. The lock ends with the session.';
