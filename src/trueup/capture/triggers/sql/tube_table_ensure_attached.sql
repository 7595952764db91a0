CREATE OR REPLACE FUNCTION @schema@.tube_table_ensure_attached(
    tube text, "table" regclass, shard bigint DEFAULT NULL, routing text DEFAULT NULL, predicate text DEFAULT NULL,
    capture text DEFAULT NULL, patience interval DEFAULT '30 s', row_id text DEFAULT NULL
) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s @schema@.sources;
    is_new boolean;
    numbers smallint[] := CASE WHEN row_id IS NULL THEN @schema@.tube_find_key("table") ELSE '{}' END;
    has_other_key boolean;
    former @schema@.sources;
    replaces boolean := false;
    reasons text[] := '{}';
    reason text;
BEGIN
    PERFORM @schema@.tube_get(tube);
    -- Workers that insert dead letters do not wait for this lock.
    PERFORM FROM @schema@.tubes t WHERE t.tube = tube_table_ensure_attached.tube FOR NO KEY UPDATE;
    routing := nullif(btrim(routing), '');
    IF capture NOT IN ('statement', 'row') THEN
        RAISE EXCEPTION 'capture must be ''statement'' or ''row'', not %', quote_literal(capture)
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF shard IS NOT NULL AND routing IS NOT NULL THEN
        RAISE EXCEPTION 'a shard and a routing expression cannot be combined'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- The sink has documents of another table under this name: of one that was dropped, or renamed.
    FOR former IN SELECT x.* FROM @schema@.sources x
                   WHERE x.tube = tube_table_ensure_attached.tube AND x.detached_at IS NULL
                     AND x.name = tube_table_ensure_attached."table"::text
                     AND x."table" <> tube_table_ensure_attached."table" LOOP
        replaces := true;
        IF NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = former."table") THEN
            PERFORM @schema@.tube_table_ensure_detached(tube, former."table", patience);
        END IF;
    END LOOP;
    SELECT x.* INTO s FROM @schema@.sources x WHERE x.tube = tube_table_ensure_attached.tube
       AND x."table" = tube_table_ensure_attached."table" ORDER BY x.source DESC LIMIT 1;
    is_new := NOT FOUND OR s.detached_at IS NOT NULL;
    -- An attached table keeps what is not given; an empty text removes the predicate.
    capture := coalesce(capture, CASE WHEN NOT is_new THEN s.capture END, 'statement');
    predicate := nullif(btrim(coalesce(predicate, CASE WHEN NOT is_new THEN s.predicate END)), '');
    PERFORM @schema@.tube_table_check("table", capture, row_id IS NULL, (@schema@.tube_get(tube)).skips_applied);
    IF shard IS NULL AND routing IS NULL AND is_new THEN
        shard := @schema@.tube_infer_shard("table");
    ELSIF shard IS NULL AND routing IS NULL THEN
        shard := s.shard;
        routing := s.routing;
    END IF;
    has_other_key := s.source IS NOT NULL
        AND (@schema@.tube_key_numbers(s) <> numbers OR s.row_id IS DISTINCT FROM tube_table_ensure_attached.row_id);
    IF NOT is_new AND (s.shard IS DISTINCT FROM shard OR s.routing IS DISTINCT FROM routing OR s.capture <> capture) THEN
        RAISE EXCEPTION '% is already attached to the tube % with another shard, routing or capture', "table", tube
            USING ERRCODE = 'duplicate_object', HINT = 'run trueup tube detach, then trueup tube attach and trueup tube backfill';
    END IF;
    -- What no touch will bring to the copy.
    IF s.source IS NOT NULL AND is_new THEN
        reasons := reasons || format('it was not attached since %s UTC', to_char(s.detached_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI'));
    ELSIF NOT is_new THEN
        IF cardinality(@schema@.tube_trigger_ddl(s.source, true)) > 0 THEN
            reasons := reasons || text 'its triggers were missing, disabled or replaced';
        END IF;
        IF s.name <> "table"::text THEN
            reasons := reasons || text 'it was renamed';
        END IF;
        IF s.predicate IS DISTINCT FROM predicate THEN
            reasons := reasons || text 'its predicate was changed';
        END IF;
    END IF;
    IF has_other_key THEN
        -- Waiting pods have the former key: the table gets another number, and the backfill below replaces them.
        PERFORM @schema@.tube_table_ensure_detached(tube, "table", patience);
        DELETE FROM @schema@.dead_letters d WHERE d.tube = s.tube AND d.source = s.source;
    ELSIF NOT is_new THEN
        PERFORM @schema@.tube_key_follow(s.source);
    END IF;
    IF s.source IS NULL OR has_other_key THEN
        INSERT INTO @schema@.sources (tube, "table", shard, routing, predicate, capture, key_numbers, key_names, key_place,
                                      row_id)
        VALUES (tube, "table", shard, routing, predicate, capture, numbers, @schema@.tube_key_names("table", numbers),
                @schema@.tube_key_place("table"), row_id)
        RETURNING * INTO s;
        is_new := true;
    ELSIF is_new THEN
        UPDATE @schema@.sources x
           SET shard = tube_table_ensure_attached.shard, routing = tube_table_ensure_attached.routing,
               predicate = tube_table_ensure_attached.predicate, capture = tube_table_ensure_attached.capture,
               key_numbers = numbers, key_names = @schema@.tube_key_names(x."table", numbers),
               key_place = @schema@.tube_key_place(x."table"), covered = '{}',
               attached_at = clock_timestamp(), detached_at = NULL
         WHERE x.source = s.source;
        PERFORM @schema@.tube_shard_follow(s.source);
    ELSE
        UPDATE @schema@.sources x SET predicate = tube_table_ensure_attached.predicate WHERE x.source = s.source;
    END IF;
    PERFORM @schema@.tube_try_expressions(s.source);
    PERFORM @schema@.tube_trigger_functions(s.source);
    PERFORM @schema@.tube_cover(s.source, is_new, patience);
    UPDATE @schema@.sources x
       SET name = x."table"::text, columns = CASE WHEN is_new THEN @schema@.tube_columns(x."table") ELSE x.columns END,
           storage = CASE WHEN is_new THEN @schema@.tube_storage(x."table") ELSE x.storage END,
           parents = CASE WHEN is_new THEN @schema@.tube_parents(x."table") ELSE x.parents END
     WHERE x.source = s.source;
    FOREACH reason IN ARRAY reasons LOOP
        PERFORM @schema@.tube_incomplete(s.source, reason);
    END LOOP;
    IF has_other_key OR replaces THEN
        PERFORM @schema@.tube_backfill_schedule(tube, "table", reason => CASE
            WHEN replaces THEN 'it replaces another table of this name' ELSE 'the table has another key' END);
    END IF;
    RETURN s.source;
END
$$;
COMMENT ON FUNCTION @schema@.tube_table_ensure_attached(text, regclass, bigint, text, text, text, interval, text) IS
    'Attaches a table to a tube: every touched key is recorded from the commit on. Returns the source number. '
    'A table without a key needs a row_id: the expression of a number by which its rows r are found.';
