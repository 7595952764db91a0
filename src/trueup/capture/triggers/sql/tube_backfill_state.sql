CREATE OR REPLACE FUNCTION @schema@.tube_backfill_state(
    s @schema@.sources, "table" regclass, shard bigint, step1_result jsonb, order_col text
) RETURNS @schema@.backfills
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    b @schema@.backfills;
BEGIN
    SELECT * INTO b FROM @schema@.backfills x
     WHERE x.source = s.source AND x.shard IS NOT DISTINCT FROM tube_backfill_state.shard FOR NO KEY UPDATE NOWAIT;
    IF b.start_seq = (step1_result ->> 'start_seq')::bigint AND b.finished_at IS NULL THEN
        IF b.order_col <> order_col OR b."table" <> "table" THEN
            RAISE EXCEPTION 'this backfill of % is ordered by %', b."table", b.order_col
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        RETURN b;
    ELSIF b.start_seq = (step1_result ->> 'start_seq')::bigint THEN
        RAISE EXCEPTION 'this backfill of % is finished', s."table"
            USING ERRCODE = 'invalid_parameter_value', HINT = 'start a new one with tube_backfill_step1';
    ELSIF b.start_seq IS NOT NULL AND b.finished_at IS NULL THEN
        RAISE EXCEPTION 'a backfill of % started at % is not finished', s."table", b.started_at
            USING ERRCODE = 'object_in_use', HINT = 'continue it with trueup tube backfill, or start again with --restart (in SQL: tube_backfill_cancel)';
    END IF;
    -- A request that is made now is for this backfill, or comes after its start is visible: see tube_backfill_schedule.
    PERFORM FROM @schema@.sources x WHERE x.source = s.source FOR NO KEY UPDATE;
    -- What is noted now is in incomplete_at below: this backfill brings it.
    PERFORM @schema@.tube_parents_follow(s.tube, s.source);
    PERFORM @schema@.tube_triggers_follow(s.source);
    DELETE FROM @schema@.backfills x WHERE x.source = s.source AND x.shard IS NOT DISTINCT FROM tube_backfill_state.shard;
    INSERT INTO @schema@.backfills (source, shard, "table", start_seq, order_col, started_at, columns, storage,
                                    incomplete_at)
    VALUES (s.source, shard, "table", (step1_result ->> 'start_seq')::bigint, order_col,
            (step1_result ->> 'started_at')::timestamptz, @schema@.tube_columns(s."table"),
            @schema@.tube_storage(s."table"),
            (SELECT x.incomplete_at FROM @schema@.sources x WHERE x.source = s.source))
    RETURNING * INTO b;
    RETURN b;
EXCEPTION WHEN lock_not_available OR unique_violation THEN
    RAISE EXCEPTION 'another backfill of % is running', s."table"
        USING ERRCODE = 'object_in_use', HINT = 'wait until it is finished';
END
$$;
COMMENT ON FUNCTION @schema@.tube_backfill_state(@schema@.sources, regclass, bigint, jsonb, text) IS
    'Returns the state of the backfill of a table and shard, and creates it if it is new. Only one can run at a time.';
