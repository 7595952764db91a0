CREATE OR REPLACE FUNCTION @schema@.tube_backfill_step3(
    step1_result jsonb, tube text, "table" regclass, order_col text DEFAULT NULL, shard bigint DEFAULT NULL,
    max_keys bigint DEFAULT NULL
) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = off
@settings@ AS $$
DECLARE
    s @schema@.sources := @schema@.tube_source(tube, "table");
    t @schema@.tubes := @schema@.tube_get(tube);
    b @schema@.backfills;
    key record := @schema@.tube_key_sql(s);
    part record;
BEGIN
    IF s.routing IS NULL AND shard <> s.shard THEN
        RAISE EXCEPTION '% is attached with shard %, not %', s."table", s.shard, shard
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF (step1_result ->> 'xid')::xid8 >= pg_snapshot_xmin(pg_current_snapshot()) THEN
        RAISE EXCEPTION 'transactions that are older than the backfill are still open'
            USING ERRCODE = 'active_sql_transaction', HINT = 'call tube_backfill_step2 first, and commit after each step';
    END IF;
    b := @schema@.tube_backfill_state(s, "table", coalesce(shard, s.shard), step1_result,
                                      coalesce(order_col, key.names[1]));
    EXECUTE format(
        'WITH taken AS MATERIALIZED (%1$s), pods AS ('
        ' INSERT INTO %2$s (shard, source, op, %3$s)'
        ' SELECT x.shard, %4$s, ''B'', array_agg(x.key ORDER BY x.n) FROM ('
        '   SELECT y.*, (row_number() OVER (PARTITION BY y.shard ORDER BY y.n) - 1) / %5$s AS pod FROM taken y) x'
        ' GROUP BY x.shard, x.pod ORDER BY min(x.n) RETURNING 1)'
        ' SELECT (SELECT count(*) FROM taken) AS keys, (SELECT count(*) FROM pods) AS pods, z.last_order, z.last_key'
        ' FROM (SELECT 1) one LEFT JOIN (SELECT * FROM taken ORDER BY n DESC LIMIT 1) z ON true',
        @schema@.tube_backfill_query(b, max_keys), @schema@.tube_pods_table(tube),
        CASE WHEN key.is_integer THEN 'ids' ELSE 'keys' END, s.source, t.pod_size) INTO part;
    UPDATE @schema@.backfills x
       SET keys = x.keys + part.keys, pods = x.pods + part.pods, updated_at = clock_timestamp(),
           last_order = CASE WHEN part.keys > 0 THEN part.last_order ELSE x.last_order END,
           last_key = coalesce(part.last_key, x.last_key),
           finished_at = CASE WHEN max_keys IS NULL OR part.keys < max_keys THEN clock_timestamp() END
     WHERE x.source = b.source AND x.shard IS NOT DISTINCT FROM b.shard
    RETURNING * INTO b;
    IF b.finished_at IS NOT NULL THEN
        -- All rows are read again: the copy lacks nothing that was known at the start.
        UPDATE @schema@.sources x
           SET columns = @schema@.tube_columns_kept(x.columns, b.columns), storage = @schema@.tube_storage_kept(x.storage, b.storage),
               incomplete = CASE WHEN x.incomplete_at IS DISTINCT FROM b.incomplete_at THEN x.incomplete END
         WHERE x.source = s.source AND b."table" = x."table" AND b.shard IS NOT DISTINCT FROM x.shard;
        PERFORM @schema@.tube_control(s.source, b.shard, '}', jsonb_build_object(
            'type', 'backfill_end', 'table', "table", 'start_seq', b.start_seq,
            'started_at', b.started_at, 'keys', b.keys));
    END IF;
    RETURN to_jsonb(b);
END
$$;
COMMENT ON FUNCTION @schema@.tube_backfill_step3(jsonb, text, regclass, text, bigint, bigint) IS
    'Step 3 of a backfill: inserts all keys of a table as backfill pods, in the order of a column, and a control pod '
    'at the end. With max_keys it inserts at most that many; call it again '
    'with the same result of step 1 until finished_at is set.';
