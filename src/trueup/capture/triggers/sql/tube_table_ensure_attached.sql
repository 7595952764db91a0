CREATE OR REPLACE FUNCTION @schema@.tube_table_ensure_attached(
    tube text, "table" regclass, shard bigint DEFAULT NULL, routing text DEFAULT NULL, predicate text DEFAULT NULL,
    capture text DEFAULT 'statement', patience interval DEFAULT '30 s'
) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s @schema@.sources;
    is_new boolean;
BEGIN
    PERFORM @schema@.tube_get(tube);
    -- Workers that insert dead letters do not wait for this lock.
    PERFORM FROM @schema@.tubes t WHERE t.tube = tube_table_ensure_attached.tube FOR NO KEY UPDATE;
    routing := nullif(btrim(routing), '');
    predicate := nullif(btrim(predicate), '');
    IF capture IS NULL OR capture NOT IN ('statement', 'row') THEN
        RAISE EXCEPTION 'capture must be ''statement'' or ''row'', not %', coalesce(quote_literal(capture), 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF shard IS NOT NULL AND routing IS NOT NULL THEN
        RAISE EXCEPTION 'a shard and a routing expression cannot be combined'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM @schema@.tube_table_check("table", capture);
    IF shard IS NULL AND routing IS NULL THEN
        shard := @schema@.tube_infer_shard("table");
    END IF;
    SELECT x.* INTO s FROM @schema@.sources x WHERE x.tube = tube_table_ensure_attached.tube
       AND x."table" = tube_table_ensure_attached."table";
    is_new := NOT FOUND OR s.detached_at IS NOT NULL;
    IF NOT is_new AND (s.shard IS DISTINCT FROM shard OR s.routing IS DISTINCT FROM routing OR s.capture <> capture) THEN
        RAISE EXCEPTION '% is already attached to the tube % with another shard, routing or capture', "table", tube
            USING ERRCODE = 'duplicate_object', HINT = 'detach it, attach it again and run a backfill';
    END IF;
    IF is_new THEN
        INSERT INTO @schema@.sources (tube, "table", shard, routing, predicate, capture, key_numbers)
        VALUES (tube, "table", shard, routing, predicate, capture, @schema@.tube_find_key("table"))
            ON CONFLICT ON CONSTRAINT sources_tube_table_key DO UPDATE
           SET shard = excluded.shard, routing = excluded.routing, predicate = excluded.predicate,
               capture = excluded.capture, key_numbers = excluded.key_numbers, covered = '{}',
               attached_at = clock_timestamp(), detached_at = NULL
        RETURNING * INTO s;
    ELSE
        UPDATE @schema@.sources x
           SET predicate = tube_table_ensure_attached.predicate, key_numbers = @schema@.tube_find_key(x."table")
         WHERE x.source = s.source;
    END IF;
    PERFORM @schema@.tube_try_expressions(s.source);
    PERFORM @schema@.tube_trigger_functions(s.source);
    PERFORM @schema@.tube_cover(s.source, is_new, patience);
    RETURN s.source;
END
$$;
COMMENT ON FUNCTION @schema@.tube_table_ensure_attached(text, regclass, bigint, text, text, text, interval) IS
    'Attaches a table to a tube: every touched key is recorded from the commit on. Returns the source number.';
