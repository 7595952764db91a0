CREATE OR REPLACE FUNCTION @schema@.tube_shard_follow(source integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s @schema@.sources;
    t @schema@.tubes;
    pods text;
    other integer;
BEGIN
    SELECT * INTO s FROM @schema@.sources x WHERE x.source = tube_shard_follow.source;
    t := @schema@.tube_get(s.tube);
    pods := @schema@.tube_pods_table(s.tube);
    -- With a routing expression, sinks know a document by shard and key: the pods of the former shard remove it there.
    IF s.shard IS NULL THEN
        RETURN;
    END IF;
    -- A job may be writing rows of the former shard. One of another partition, which gets the pods from now on, could
    -- write newer rows of the same keys before. A killed job may write for 20 seconds: see GRACE in hold.py.
    EXECUTE format(
        'SELECT min(x.partition) FROM (SELECT abs(p.shard %% $2)::integer FROM %s p WHERE p.source = $1 AND p.shard <> $3'
        ' UNION SELECT abs(d.shard %% $2)::integer FROM @schema@.dead_letters d WHERE d.source = $1 AND d.shard <> $3'
        ') x(partition) WHERE x.partition <> abs($3 %% $2) AND (@schema@.tube_holder($4, x.partition) IS NOT NULL'
        ' OR EXISTS (SELECT FROM @schema@.workers w WHERE w.tube = $4 AND w.partition = x.partition AND w.ended_at IS NULL'
        '               AND w.seen_at > clock_timestamp() - interval ''20 s''))', pods)
       INTO other USING source, t.partitions, s.shard, s.tube;
    IF other IS NOT NULL THEN
        RAISE EXCEPTION '% had another shard, and a job of partition % is delivering touches with it', s."table", other
            USING ERRCODE = 'object_in_use', HINT = 'wait until they are delivered, or stop that job, then attach the table again';
    END IF;
    EXECUTE format('UPDATE %s p SET shard = $2 WHERE p.source = $1 AND p.shard <> $2', pods) USING source, s.shard;
    DELETE FROM @schema@.dead_letters d
     WHERE d.source = s.source AND d.shard <> s.shard
       AND EXISTS (SELECT FROM @schema@.dead_letters e WHERE e.tube = d.tube AND e.source = d.source AND e.key = d.key
                      AND (e.shard = s.shard OR e.shard < d.shard));
    UPDATE @schema@.dead_letters d SET shard = s.shard WHERE d.source = s.source AND d.shard <> s.shard;
END
$$;
COMMENT ON FUNCTION @schema@.tube_shard_follow(integer) IS
    'Moves the pods and dead letters of a table that was attached again to its present shard, so that one job has all touches of '
    'a key; raises an error if a job of another partition may be delivering them.';
