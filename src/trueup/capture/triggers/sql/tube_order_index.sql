CREATE OR REPLACE FUNCTION @schema@.tube_order_index(tube text, partitions integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    pods text := @schema@.tube_pods_table(tube);
BEGIN
    -- A shard that changes its partition could be processed by two workers at the same time.
    PERFORM @schema@.tube_lock_all(tube);
    PERFORM @schema@.tube_ddl(ARRAY[
        format('DROP INDEX IF EXISTS @schema@.%I', 'pods_' || tube || '_order'),
        format('CREATE INDEX %I ON %s (%s (op = ''B''), seq)', 'pods_' || tube || '_order', pods,
               CASE WHEN partitions > 1 THEN format('abs(shard %% %s),', partitions) ELSE '' END)
    ], ARRAY[pods::regclass], '30 s');
END
$$;
COMMENT ON FUNCTION @schema@.tube_order_index(text, integer) IS
    'Creates the index that is used to claim pods: partition, live before backfill, number.';
