CREATE OR REPLACE FUNCTION @schema@.tube_incomplete(source integer, reason text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- Another time each time: a backfill that began before does not bring what is missing now.
    UPDATE @schema@.sources x
       SET incomplete = CASE WHEN strpos(x.incomplete, reason) > 0 THEN x.incomplete
                             ELSE concat_ws('; ', x.incomplete, reason) END,
           incomplete_at = clock_timestamp()
     WHERE x.source = tube_incomplete.source;
END
$$;
COMMENT ON FUNCTION @schema@.tube_incomplete(integer, text) IS
    'Notes that the copy of an attached table may lack changes which no touch will bring, until a backfill is finished.';
