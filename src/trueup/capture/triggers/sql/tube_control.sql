CREATE OR REPLACE FUNCTION @schema@.tube_control(source integer, shard bigint, op "char", payload jsonb) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t @schema@.tubes;
    last bigint;
BEGIN
    SELECT x.* INTO t FROM @schema@.sources s JOIN @schema@.tubes x USING (tube) WHERE s.source = tube_control.source;
    payload := payload || CASE
        -- A pod is for the shards of its partition; the tube may have another number of partitions when it is processed.
        WHEN shard IS NULL THEN jsonb_build_object('shards', 'all', 'partitions', t.partitions)
        ELSE jsonb_build_object('shards', shard) END;
    EXECUTE format(
        'WITH pods AS (INSERT INTO %s (shard, source, op, payload) SELECT n, $1, $2, $3 FROM generate_series($4, $5) n '
        'RETURNING seq) SELECT max(seq) FROM pods', @schema@.tube_pods_table(t.tube))
       INTO last
      USING source, op, payload, coalesce(shard, 0), coalesce(shard, t.partitions - 1);
    RETURN last;
END
$$;
COMMENT ON FUNCTION @schema@.tube_control(integer, bigint, "char", jsonb) IS
    'Inserts a control pod for a shard, or for NULL (all shards) one per partition of the tube. Returns the last number.';
