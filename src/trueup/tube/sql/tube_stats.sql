CREATE OR REPLACE FUNCTION @schema@.tube_stats() RETURNS TABLE (
    tube text, partition integer, live_pods bigint, live_keys bigint, backfill_pods bigint, backfill_keys bigint,
    control_pods bigint, troubles bigint, shards bigint, oldest_live_s float8, oldest_backfill_s float8, bytes bigint
)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t record;
BEGIN
    FOR t IN SELECT x.tube, x.partitions FROM @schema@.tubes x ORDER BY x.tube LOOP
        RETURN QUERY EXECUTE format($query$
            SELECT %1$L::text, g.n,
                   count(p.seq) FILTER (WHERE p.op <> 'B' AND p.payload IS NULL),
                   coalesce(sum(p.size) FILTER (WHERE p.op <> 'B'), 0)::bigint,
                   count(p.seq) FILTER (WHERE p.op = 'B'),
                   coalesce(sum(p.size) FILTER (WHERE p.op = 'B'), 0)::bigint,
                   count(p.payload), count(*) FILTER (WHERE p.op = '!'), count(DISTINCT p.shard),
                   extract(epoch FROM clock_timestamp() - min(p.at) FILTER (WHERE p.op <> 'B'))::float8,
                   extract(epoch FROM clock_timestamp() - min(p.at) FILTER (WHERE p.op = 'B'))::float8,
                   pg_total_relation_size(%2$L::regclass)
              FROM generate_series(0, %3$s - 1) g(n)
              LEFT JOIN (SELECT *, cardinality(ids) + coalesce(cardinality(keys), 0) AS size FROM %2$s) p
                ON abs(p.shard %% %3$s) = g.n
             GROUP BY g.n ORDER BY g.n$query$, t.tube, @schema@.tube_pods_table(t.tube), t.partitions);
    END LOOP;
END
$$;
COMMENT ON FUNCTION @schema@.tube_stats() IS
    'What waits in each partition of each tube: pods, keys, shards, how old the oldest is; '
    'bytes are those of the whole tube.';
