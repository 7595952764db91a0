CREATE OR REPLACE FUNCTION @schema@.tube_backfill_query(b @schema@.backfills, max_keys bigint) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s @schema@.sources;
    key record;
    ordered record;
    names text;
    after_key text;
    texts text;
    place text;
BEGIN
    SELECT * INTO s FROM @schema@.sources x WHERE x.source = b.source;
    key := @schema@.tube_key_sql(s);
    SELECT @schema@.tube_may_be_null(s."table", ARRAY[a.attnum]) AS may_be_null, c.* INTO ordered
      FROM pg_attribute a CROSS JOIN @schema@.tube_column_sql(s."table", a.attname) c WHERE a.attrelid = s."table" AND a.attname = b.order_col AND NOT a.attisdropped;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'column % does not exist in %', quote_ident(b.order_col), s."table" USING ERRCODE = 'undefined_column';
    END IF;
    SELECT string_agg(c.value, ', ' ORDER BY u.at), string_agg(format('%L::%s', v, c.type), ', ' ORDER BY u.at),
           string_agg(c.text, ', ' ORDER BY u.at)
      INTO names, after_key, texts
      FROM unnest(key.names, b.last_key) WITH ORDINALITY u(n, v, at)
     CROSS JOIN @schema@.tube_column_sql(s."table", u.n) c;
    -- A row that is moved or inserted before this position during the backfill is touched by its trigger.
    place := CASE
        WHEN b.last_key IS NULL THEN 'true'
        WHEN b.last_order IS NULL THEN format('r.%I IS NULL AND (%s) > (%s)', b.order_col, names, after_key)
        WHEN NOT ordered.may_be_null THEN format('(%s, %s) > (%L::%s, %s)', ordered.value, names, b.last_order,
                                            ordered.type, after_key)
        ELSE format('((%1$s, %2$s) > (%3$L::%4$s, %5$s) OR r.%6$I IS NULL)', ordered.value, names, b.last_order,
                    ordered.type, after_key, b.order_col)
    END;
    RETURN format(
        'SELECT %s AS key, %s AS shard, %s AS last_order, ARRAY[%s]::text[] AS last_key, row_number() OVER () AS n'
        ' FROM (SELECT * FROM %s%s r WHERE %s AND %s AND %s ORDER BY %s %s LIMIT %s) r',
        key.expression, @schema@.tube_shard_sql(s.source), ordered.text, texts,
        CASE WHEN (SELECT c.relkind FROM pg_class c WHERE c.oid = b."table") = 'p' THEN '' ELSE 'ONLY ' END, b."table",
        @schema@.tube_where(s.source), place,
        CASE WHEN b.shard IS NULL OR s.routing IS NULL THEN 'true'
             ELSE format('%s = %L::bigint', @schema@.tube_shard_sql(s.source), b.shard) END,
        CASE WHEN b.order_col = ANY (key.names[1:1]) THEN '' ELSE ordered.value || ', ' END, names,
        coalesce(max_keys::text, 'ALL'));
END
$$;
COMMENT ON FUNCTION @schema@.tube_backfill_query(@schema@.backfills, bigint) IS
    'Returns the query for the next rows of a backfill, in its order.';
