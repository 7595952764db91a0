CREATE OR REPLACE FUNCTION @schema@.tube_release(tube text, partition integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM @schema@.holders h
     WHERE h.tube = tube_release.tube AND h.partition = tube_release.partition AND h.pid = pg_backend_pid();
END
$$;
COMMENT ON FUNCTION @schema@.tube_release(text, integer) IS 'Releases the lock of a partition that this session holds.';
