CREATE OR REPLACE FUNCTION @schema@.tube_backfill_cancel(
    tube text, "table" regclass, shard bigint DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s @schema@.sources := @schema@.tube_source(tube, "table");
BEGIN
    DELETE FROM @schema@.backfills b
     WHERE b.source = s.source AND b.finished_at IS NULL
       AND b.shard IS NOT DISTINCT FROM coalesce(tube_backfill_cancel.shard, s.shard);
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION @schema@.tube_backfill_cancel(text, regclass, bigint) IS
    'Cancels an unfinished backfill and returns whether there was one. Its pods stay, which is harmless.';
