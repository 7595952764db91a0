CREATE OR REPLACE FUNCTION @schema@.tube_pods_insert(
    tube text, "table" regclass, query text, shard bigint DEFAULT NULL, op "char" DEFAULT 'T'
) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
@settings@ AS $$
DECLARE
    s @schema@.sources := @schema@.tube_source(tube, "table");
    t @schema@.tubes := @schema@.tube_get(tube);
    is_integer boolean := (@schema@.tube_key_sql(s)).is_integer;
    is_routed boolean := coalesce(shard, s.shard) IS NULL;
    columns text := CASE WHEN coalesce(shard, s.shard) IS NULL THEN 'shard, key' ELSE 'key' END;
    detail text;
    pods bigint;
BEGIN
    IF op NOT IN ('T', 'B') THEN
        RAISE EXCEPTION 'op must be ''T'' (touch) or ''B'' (backfill)' USING ERRCODE = 'invalid_parameter_value';
    ELSIF shard <> s.shard THEN
        RAISE EXCEPTION '% is attached with shard %, not %', s."table", s.shard, shard
            USING ERRCODE = 'invalid_parameter_value', HINT = 'leave out the shard';
    END IF;
    IF strpos(current_setting('application_name'), 'backfill') > 0 THEN
        op := 'B';
    END IF;
    BEGIN
        -- More columns: the server would ignore them, and take a shard for a key.
        EXECUTE format(E'SELECT FROM (%s\n) u(%s, more) LIMIT 0', query, columns);
        RAISE EXCEPTION 'too many columns' USING ERRCODE = 'too_many_columns';
    EXCEPTION
        WHEN invalid_column_reference THEN
            NULL;
        WHEN too_many_columns THEN
            RAISE EXCEPTION 'the query for % must return exactly these columns: %', s."table", columns
                USING ERRCODE = 'invalid_parameter_value', HINT = 'select no other columns';
    END;
    -- The transaction gets its number before the pods get theirs, so that a backfill barrier waits for it.
    PERFORM pg_current_xact_id();
    BEGIN
        EXECUTE format(
            'INSERT INTO %1$s (shard, source, op, %2$s)'
            ' SELECT x.shard, %3$s, %4$L, array_agg(x.key ORDER BY x.n) FROM ('
            '   SELECT y.*, (row_number() OVER (PARTITION BY y.shard ORDER BY y.n) - 1) / %5$s AS pod FROM ('
            '     SELECT %6$s AS key, q.shard, row_number() OVER () AS n FROM (%7$s) q) y) x'
            ' GROUP BY x.shard, x.pod ORDER BY min(x.n)',
            @schema@.tube_pods_table(tube), CASE WHEN is_integer THEN 'ids' ELSE 'keys' END, s.source, op, t.pod_size,
            @schema@.tube_key_checked_sql(s),
            format(E'SELECT key, %s AS shard FROM (%s\n) u(%s)',
                   CASE WHEN is_routed THEN 'coalesce(shard::bigint, 0)' ELSE format('%L::bigint', coalesce(shard, s.shard)) END,
                   query, columns));
        GET DIAGNOSTICS pods = ROW_COUNT;
    EXCEPTION
        WHEN division_by_zero THEN
            RAISE; -- By the query itself.
        WHEN data_exception THEN
            GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
            PERFORM @schema@.tube_key_refused(
                format('keys of %s cannot be touched: %s', s."table", concat_ws(': ', SQLERRM, nullif(detail, ''))));
    END;
    RETURN pods;
END
$$;
COMMENT ON FUNCTION @schema@.tube_pods_insert(text, regclass, text, bigint, "char") IS
    'Touches all keys that a query returns, in its order: (key), '
    'or (shard, key) if the table has a routing expression and no shard is specified. '
    'Returns the number of pods.';
