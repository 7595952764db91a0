CREATE OR REPLACE FUNCTION @schema@.tube_backfill_schedule(
    tube text, "table" regclass, order_col text DEFAULT NULL, shard bigint DEFAULT NULL, reason text DEFAULT 'asked for'
) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s @schema@.sources := @schema@.tube_source(tube, "table");
    request jsonb := jsonb_build_object('type', 'backfill_schedule', 'table', "table", 'order_col', order_col,
                                        'shard', coalesce(shard, s.shard));
    waiting bigint;
BEGIN
    -- One at a time: a backfill that begins (tube_backfill_state) waits, or is seen here.
    PERFORM FROM @schema@.sources x WHERE x.source = s.source FOR NO KEY UPDATE;
    -- A request that waits reads all rows later than now. One that has begun may have passed some of them.
    EXECUTE format('SELECT min(p.seq) FROM %s p WHERE p.source = $1 AND p.op = ''{'' AND p.payload @> $2'
                   ' AND NOT EXISTS (SELECT FROM @schema@.backfills b WHERE b.source = p.source AND b.started_at >= p.at)',
                   @schema@.tube_pods_table(s.tube)) INTO waiting USING s.source, request;
    IF waiting IS NOT NULL THEN
        RETURN waiting;
    END IF;
    -- A single pod for all shards, because one worker runs the backfill.
    RETURN @schema@.tube_control(s.source, coalesce(shard, s.shard, 0), '{', request || jsonb_build_object('reason', reason));
END
$$;
COMMENT ON FUNCTION @schema@.tube_backfill_schedule(text, regclass, text, bigint, text) IS
    'Requests a backfill of a table from the worker of the tube, by a control pod. Returns the number of the pod: '
    'of the one that waits already, if the same was requested and has not begun.';
