CREATE OR REPLACE FUNCTION @schema@.tube_slow_insert(
    source integer, tg_op text, op "char", each_row boolean, with_predicate boolean, with_routing boolean
) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s @schema@.sources;
    t @schema@.tubes;
    key record;
    parts text[];
BEGIN
    SELECT * INTO s FROM @schema@.sources x WHERE x.source = tube_slow_insert.source;
    t := @schema@.tube_get(s.tube);
    -- Current column names: a renamed key column is found.
    key := @schema@.tube_key_sql(s);
    parts := array_remove(ARRAY[
        CASE WHEN tg_op <> 'DELETE' THEN CASE WHEN each_row THEN '(SELECT ($1).*) r' ELSE 'new_rows r' END END,
        CASE WHEN tg_op <> 'INSERT' THEN CASE WHEN each_row THEN '(SELECT ($2).*) r' ELSE 'old_rows r' END END], NULL);
    RETURN format(
        'INSERT INTO %s (shard, source, op, %s) SELECT x.shard, %s, %L, array_agg(x.key) FROM ('
        'SELECT y.shard, y.key, (row_number() OVER (PARTITION BY y.shard) - 1) / %s AS pod FROM (%s) y'
        ') x GROUP BY x.shard, x.pod',
        @schema@.tube_pods_table(s.tube), CASE WHEN key.is_integer THEN 'ids' ELSE 'keys' END, source, op, t.pod_size,
        (SELECT string_agg(format('SELECT %s AS key, %s AS shard FROM %s WHERE %s', key.expression,
                    CASE WHEN with_routing THEN @schema@.tube_shard_sql(source)
                         ELSE quote_literal(coalesce(s.shard, 0)) || '::bigint' END,
                    part, CASE WHEN with_predicate THEN @schema@.tube_where(source) ELSE 'true' END), ' UNION ')
           FROM unnest(parts) part));
END
$$;
COMMENT ON FUNCTION @schema@.tube_slow_insert(integer, text, "char", boolean, boolean, boolean) IS
    'Returns the statement that creates pods of any number of rows in bounded memory, optionally without predicate or routing.';
