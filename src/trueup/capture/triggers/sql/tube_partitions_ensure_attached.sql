CREATE OR REPLACE FUNCTION @schema@.tube_partitions_ensure_attached(
    tube text DEFAULT NULL, patience interval DEFAULT '30 s', only_source integer DEFAULT NULL
) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    number integer;
    changed integer := 0;
BEGIN
    FOR number IN SELECT * FROM @schema@.tube_partitions_changed(tube, only_source) LOOP
        PERFORM @schema@.tube_cover(number, false, patience);
        changed := changed + 1;
    END LOOP;
    RETURN changed;
END
$$;
COMMENT ON FUNCTION @schema@.tube_partitions_ensure_attached(text, interval, integer) IS
    'Creates the statement triggers of new partitions, which are captured row by row until then. '
    'Returns the number of tables with new or removed partitions. Call it periodically.';
