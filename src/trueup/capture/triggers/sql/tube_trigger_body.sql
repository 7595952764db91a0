CREATE OR REPLACE FUNCTION @schema@.tube_trigger_body(source integer, each_row boolean) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    s @schema@.sources;
    t @schema@.tubes;
    key record;
    body text := $body$
#variable_conflict use_column
DECLARE
    _op "char" := CASE WHEN strpos(current_setting('application_name'), 'backfill') > 0 THEN 'B' ELSE TG_OP::"char" END;
    _keys {type}[];
    _before {type}[];{shards}
    _error text;
    _lost boolean := true;
BEGIN
    {foreign}{muted}{limited}IF TG_OP = 'TRUNCATE' THEN
        PERFORM {schema}.tube_control({source}, {fixed}, 'X',
            jsonb_build_object('type', 'truncate', 'table', TG_RELID::regclass, 'start_seq', nextval('{schema}.pod_seq'),
                               'started_at', clock_timestamp()));
        RETURN NULL;
    END IF;
    -- This block only reads, so that its savepoint needs no transaction number.
    BEGIN
        IF TG_OP = 'INSERT' THEN
            {take_new}
        ELSIF TG_OP = 'DELETE' THEN
            {take_old}
        ELSE
            {take_update}
        END IF;
    EXCEPTION WHEN OTHERS THEN
        _error := SQLERRM;
    END;
    {put}
    -- Too many keys for memory, or an error: with predicate and routing, then without the predicate, then without both.
    FOR _level IN CASE WHEN _error IS NULL THEN 1 ELSE 2 END .. 3 LOOP
        BEGIN
            EXECUTE {schema}.tube_slow_insert({source}, TG_OP, _op, {each_row}, _level < 2, _level < 3) {using};
            _lost := _level = 3 AND {fixed} IS NULL;
            EXIT;
        EXCEPTION WHEN OTHERS THEN
            _error := coalesce(_error, SQLERRM);
        END;
    END LOOP;
    IF _error IS NOT NULL THEN
        PERFORM {schema}.tube_trouble({source}, _error, _lost, TG_RELID::regclass);
    END IF;
    RETURN NULL;
END
$body$;
    take text;
    take_update text;
    put text;
BEGIN
    SELECT * INTO s FROM @schema@.sources x WHERE x.source = tube_trigger_body.source;
    t := @schema@.tube_get(s.tube);
    key := @schema@.tube_key_sql(s);
    IF s.shard IS NOT NULL THEN
        take := '_keys := ARRAY(SELECT {key} FROM {rows} WHERE {where} LIMIT {most});';
        take_update := $take$SELECT ARRAY(SELECT {key} FROM {new_rows} WHERE {where} LIMIT {most}),
                   ARRAY(SELECT {key} FROM {old_rows} WHERE {where} LIMIT {most}) INTO _keys, _before;
            -- Both are in the same order and usually equal: then one of them is enough.
            IF _before <> _keys THEN
                {take_both}
            END IF;$take$;
        -- Slices of a flat array of integers are cheap at any length.
        put := $put$IF _error IS NULL AND cardinality(_keys) BETWEEN 1 AND {size} THEN
        INSERT INTO {pods} (shard, source, op, {ids}) VALUES ({fixed}, {source}, _op, _keys);
        RETURN NULL;
    ELSIF _error IS NULL AND cardinality(_keys) = 0 THEN
        RETURN NULL;
    ELSIF _error IS NULL AND cardinality(_keys) < {most} THEN
        INSERT INTO {pods} (shard, source, op, {ids}) $put$ || CASE WHEN key.is_integer
            THEN $put$SELECT {fixed}, {source}, _op, a.flat[n:n + {size} - 1]
              FROM (SELECT _keys || '{}'::bigint[] AS flat OFFSET 0) a, generate_series(1, cardinality(_keys), {size}) n;$put$
            ELSE $put$SELECT {fixed}, {source}, _op, array_agg(u.key)
              FROM unnest(_keys) WITH ORDINALITY u(key, n) GROUP BY (u.n - 1) / {size} ORDER BY min(u.n);$put$ END
            || E'\n        RETURN NULL;\n    END IF;';
    ELSE
        take := 'SELECT array_agg(x.key), array_agg(x.shard) INTO _keys, _shards'
                ' FROM (SELECT {key} AS key, {shard} AS shard FROM {rows} WHERE {where} LIMIT {most}) x;';
        take_update := '{take_both}';
        put := $put$IF _error IS NULL AND coalesce(cardinality(_keys), 0) < {most} THEN
        INSERT INTO {pods} (shard, source, op, {ids})
            SELECT x.shard, {source}, _op, array_agg(x.key)
              FROM (SELECT u.shard, u.key, row_number() OVER (PARTITION BY u.shard) - 1 AS n
                      FROM unnest(_shards, _keys) u(shard, key)) x
             GROUP BY x.shard, x.n / {size};
        RETURN NULL;
    END IF;$put$;
    END IF;
    body := replace(replace(body, '{put}', put), '{take_update}', take_update);
    body := replace(body, '{take_both}', replace(replace(take, ' LIMIT {most}',
        ' UNION SELECT {key}' || CASE WHEN s.shard IS NULL THEN ', {shard}' ELSE '' END
        || ' FROM {old_rows} WHERE {where} LIMIT {most}'), '{rows}', '{new_rows}'));
    body := replace(body, '{take_new}', replace(take, '{rows}', '{new_rows}'));
    body := replace(body, '{take_old}', replace(take, '{rows}', '{old_rows}'));
    RETURN @schema@.tube_fill(body, jsonb_build_object(
        'new_rows', CASE WHEN each_row THEN '(SELECT NEW.*) r' ELSE 'new_rows r' END,
        'old_rows', CASE WHEN each_row THEN '(SELECT OLD.*) r' ELSE 'old_rows r' END,
        'using', CASE WHEN each_row THEN 'USING NEW, OLD' ELSE '' END,
        'each_row', each_row,
        -- See tube_trigger_functions. After a dump and restore the table has another number, and before its row in `sources` is
        -- visible to an older snapshot, only the number is known.
        'foreign', CASE WHEN each_row AND (SELECT c.relkind = 'p' FROM pg_class c WHERE c.oid = s."table") THEN format(
            $foreign$IF TG_WHEN <> 'AFTER' OR TG_LEVEL <> 'ROW' THEN
        RETURN NULL;
    END IF;
    IF pg_partition_root(TG_RELID)::oid IS DISTINCT FROM %1$s THEN -- No query: nearly always enough.
        IF %1$s NOT IN (SELECT a::oid FROM pg_partition_ancestors(TG_RELID) a) AND NOT EXISTS (
            SELECT FROM @schema@.sources s JOIN pg_partition_ancestors(TG_RELID) a ON a = s."table" WHERE s.source = %2$s) THEN
            RETURN NULL;
        END IF;
    END IF;
    $foreign$, s."table"::oid, source) ELSE '' END,
        -- The change log of a sync must not record the writes of the sync itself. Any role can set the setting, so the role
        -- of the session counts too: it must be a member of the role that owns this function.
        'muted', CASE WHEN t.sync IS NOT NULL THEN format(
            $muted$IF current_setting('trueup.sync', true) = %L AND pg_has_role(session_user, current_user, 'MEMBER') THEN
        RETURN NULL;
    END IF;
    $muted$, t.sync) ELSE '' END,
        -- The size takes some microseconds: one of 61 statements asks for it, by the clock, and every one when it was reached.
        -- Numbers instead of names, because a name is looked up each time.
        'limited', CASE WHEN t.max_bytes IS NOT NULL THEN (SELECT format(
            $limited$IF (date_part('microseconds', clock_timestamp())::bigint %% 61 = 0 OR pg_sequence_last_value(%s::oid) > 0)
       AND pg_relation_size(%s::oid) + coalesce(pg_relation_size(%s::oid), 0) > %s THEN
        PERFORM @schema@.tube_full(%s, TG_RELID::regclass);
        RETURN NULL;
    END IF;
    $limited$, format('@schema@.%I', 'full_' || s.tube)::regclass::oid, c.oid, c.reltoastrelid, t.max_bytes, source)
            FROM pg_class c WHERE c.oid = @schema@.tube_pods_table(s.tube)::regclass) ELSE '' END,
        'shards', CASE WHEN s.shard IS NULL THEN E'\n    _shards bigint[];' ELSE '' END,
        'type', CASE WHEN key.is_integer THEN 'bigint' ELSE 'text' END,
        'ids', CASE WHEN key.is_integer THEN 'ids' ELSE 'keys' END,
        'pods', @schema@.tube_pods_table(s.tube),
        'schema', '@schema@',
        'source', source,
        'size', t.pod_size,
        'most', 1000001,
        -- Quoted: a minus sign before the smallest bigint would be applied to a number out of range.
        'fixed', coalesce(quote_literal(s.shard) || '::bigint', 'NULL::bigint'),
        'key', key.expression,
        'shard', @schema@.tube_shard_sql(source),
        'where', @schema@.tube_where(source)));
END
$function$;
COMMENT ON FUNCTION @schema@.tube_trigger_body(integer, boolean) IS
    'Returns the body of the trigger function of an attached table, per statement or per row.';
