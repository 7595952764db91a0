CREATE OR REPLACE FUNCTION @schema@.tube_backfill_schedule(
    tube text, "table" regclass, order_col text DEFAULT NULL, shard bigint DEFAULT NULL, reason text DEFAULT 'asked for'
) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s @schema@.sources := @schema@.tube_source(tube, "table");
BEGIN
    -- A single pod for all shards, because one worker runs the backfill.
    RETURN @schema@.tube_control(s.source, coalesce(shard, s.shard, 0), '{', jsonb_build_object(
        'type', 'backfill_schedule', 'table', "table", 'order_col', order_col, 'shard', coalesce(shard, s.shard),
        'reason', reason));
END
$$;
COMMENT ON FUNCTION @schema@.tube_backfill_schedule(text, regclass, text, bigint, text) IS
    'Requests a backfill of a table from the worker of the tube, by a control pod. Returns the number of the pod.';
