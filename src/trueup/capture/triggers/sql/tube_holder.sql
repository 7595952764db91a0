CREATE OR REPLACE FUNCTION @schema@.tube_holder(tube text, partition integer) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT format('server process %s (%s%s)', a.pid, a.usename, ', ' || nullif(a.application_name, ''))
              FROM @schema@.holders h
              JOIN pg_stat_activity a ON a.pid = h.pid AND coalesce(a.backend_start = h.since, true)
             WHERE h.tube = tube_holder.tube AND h.partition = tube_holder.partition);
END
$$;
COMMENT ON FUNCTION @schema@.tube_holder(text, integer) IS
    'Describes the session that holds the lock of a partition; NULL if none does.';
