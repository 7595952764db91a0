CREATE OR REPLACE FUNCTION @schema@.tube_stats() RETURNS TABLE (
    tube text, partition integer, live_pods bigint, live_keys bigint, backfill_pods bigint, backfill_keys bigint,
    control_pods bigint, troubles bigint, shards bigint, oldest_live_s float8, oldest_backfill_s float8, bytes bigint,
    dead_letters bigint, parked bigint, worker text, worker_seen_s float8, keys_per_second float8, keys_done bigint,
    waiting text
)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t record;
BEGIN
    FOR t IN SELECT x.tube, x.partitions FROM @schema@.tubes x ORDER BY x.tube LOOP
        RETURN QUERY EXECUTE format($query$
            WITH waits AS (
                SELECT g.n,
                       count(p.seq) FILTER (WHERE p.op <> 'B' AND p.payload IS NULL) AS live_pods,
                       coalesce(sum(p.size) FILTER (WHERE p.op <> 'B'), 0)::bigint AS live_keys,
                       count(p.seq) FILTER (WHERE p.op = 'B') AS backfill_pods,
                       coalesce(sum(p.size) FILTER (WHERE p.op = 'B'), 0)::bigint AS backfill_keys,
                       count(p.payload) AS control_pods, count(*) FILTER (WHERE p.op = '!') AS troubles,
                       count(DISTINCT p.shard) AS shards,
                       extract(epoch FROM clock_timestamp() - min(p.at) FILTER (WHERE p.op <> 'B' AND p.payload IS NULL))::float8
                           AS live_s,
                       -- With the control pods of backfills and of garbage collection, which wait until their work is done.
                       extract(epoch FROM clock_timestamp() - min(p.at) FILTER (WHERE p.op IN ('B', '{', '}', 'X')))::float8
                           AS backfill_s
                  FROM generate_series(0, %3$s - 1) g(n)
                  LEFT JOIN (SELECT *, cardinality(ids) + coalesce(cardinality(keys), 0) AS size FROM %2$s) p
                    ON abs(p.shard %% %3$s) = g.n
                 GROUP BY g.n)
            SELECT %1$L::text, x.n, x.live_pods, x.live_keys, x.backfill_pods, x.backfill_keys, x.control_pods,
                   x.troubles + coalesce(w.troubles, 0), x.shards, x.live_s, x.backfill_s,
                   pg_total_relation_size(%2$L::regclass), d.letters, d.parked,
                   CASE WHEN h.is_held THEN format('%%s on %%s', w.owner ->> 'pid', w.owner ->> 'host') END,
                   CASE WHEN h.is_held THEN extract(epoch FROM clock_timestamp() - w.seen_at)::float8 END,
                   -- No rate without a recent heartbeat.
                   CASE WHEN h.is_held AND w.seen_at > clock_timestamp() - interval '15 s'
                        THEN w.keys_per_second ELSE 0 END,
                   coalesce(w.keys, 0), CASE WHEN h.is_held THEN w.waiting END
              FROM waits x
              LEFT JOIN @schema@.workers w ON w.tube = %1$L AND w.partition = x.n
             -- A killed worker did not record its end: check the lock.
             CROSS JOIN LATERAL (SELECT w.ended_at IS NULL AND @schema@.tube_holder(%1$L, x.n) IS NOT NULL AS is_held) h
             CROSS JOIN LATERAL (SELECT count(*) AS letters, count(*) FILTER (WHERE l.next_at IS NULL) AS parked
                                   FROM @schema@.dead_letters l
                                  WHERE l.tube = %1$L AND abs(l.shard %% %3$s) = x.n) d
             ORDER BY x.n$query$, t.tube, @schema@.tube_pods_table(t.tube), t.partitions);
    END LOOP;
END
$$;
COMMENT ON FUNCTION @schema@.tube_stats() IS
    'Returns statistics per partition of each tube: waiting pods, keys and shards, age of the oldest, worker and its rate; '
    'bytes is the size of the whole tube.';
