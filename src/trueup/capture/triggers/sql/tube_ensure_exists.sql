CREATE OR REPLACE FUNCTION @schema@.tube_ensure_exists(
    tube text, partitions integer DEFAULT NULL, predicate text DEFAULT NULL, pod_size integer DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    old @schema@.tubes;
    pods text := @schema@.tube_pods_table(tube);
    s record;
BEGIN
    IF tube IS NULL OR tube !~ '^[a-z_][a-z0-9_]{0,29}$' THEN
        RAISE EXCEPTION 'invalid name of a tube: %', coalesce(quote_literal(tube), 'NULL')
            USING ERRCODE = 'invalid_name', HINT = 'use at most 30 lower-case letters, digits and _; do not start with a digit';
    END IF;
    -- Waits for a session that creates the same tube.
    INSERT INTO @schema@.tubes
    VALUES (tube, coalesce(partitions, 1), nullif(btrim(predicate), ''), coalesce(pod_size, 250))
    ON CONFLICT ON CONSTRAINT tubes_pkey DO NOTHING;
    IF FOUND THEN
        EXECUTE format(
            'CREATE TABLE %s (seq bigint NOT NULL DEFAULT nextval(%L), shard bigint NOT NULL,'
            ' at timestamptz NOT NULL DEFAULT clock_timestamp(), source integer NOT NULL, op "char" NOT NULL,'
            ' ids bigint[] NOT NULL DEFAULT ''{}'', keys text[], payload jsonb)'
            -- No primary key: each index slows down the writers, and the sequence returns no number twice.
            -- Compressing a pod of 250 integers is not worth it. Queues need early and frequent vacuum.
            ' WITH (toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,'
            ' autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000)', pods, '@schema@.pod_seq');
        PERFORM @schema@.tube_make_private('TABLE', pods);
        -- Pods can be deleted, whatever publication contains the table.
        EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', pods);
        EXECUTE format('COMMENT ON TABLE %s IS %L', pods, format('Pods of the tube %s.', tube));
        EXECUTE format('CREATE INDEX ON %s (source) WHERE op = ''!''', pods);
        PERFORM @schema@.tube_order_index(tube, coalesce(partitions, 1));
        RETURN;
    END IF;
    SELECT t.* INTO old FROM @schema@.tubes t WHERE t.tube = tube_ensure_exists.tube FOR NO KEY UPDATE;
    -- NULL keeps a setting; an empty text removes the predicate.
    partitions := coalesce(partitions, old.partitions);
    predicate := nullif(btrim(coalesce(predicate, old.predicate)), '');
    pod_size := coalesce(pod_size, old.pod_size);
    UPDATE @schema@.tubes t
       SET partitions = tube_ensure_exists.partitions, predicate = tube_ensure_exists.predicate,
           pod_size = tube_ensure_exists.pod_size
     WHERE t.tube = tube_ensure_exists.tube;
    IF old.partitions <> partitions THEN
        PERFORM @schema@.tube_order_index(tube, partitions);
    END IF;
    IF old.predicate IS DISTINCT FROM predicate OR old.pod_size <> pod_size THEN
        FOR s IN SELECT x.source FROM @schema@.sources x JOIN pg_class c ON c.oid = x."table"
                  WHERE x.tube = tube_ensure_exists.tube AND x.detached_at IS NULL LOOP
            PERFORM @schema@.tube_try_expressions(s.source);
            PERFORM @schema@.tube_trigger_functions(s.source);
            IF cardinality(@schema@.tube_trigger_ddl(s.source, true)) > 0 THEN
                PERFORM @schema@.tube_incomplete(s.source, 'its triggers were missing, disabled or replaced');
            END IF;
            PERFORM @schema@.tube_cover(s.source, false, '30 s');
            IF old.predicate IS DISTINCT FROM predicate THEN
                PERFORM @schema@.tube_incomplete(s.source, 'the predicate of the tube was changed');
            END IF;
        END LOOP;
    END IF;
END
$$;
COMMENT ON FUNCTION @schema@.tube_ensure_exists(text, integer, text, integer) IS
    'Creates a tube, or changes the partitions, the predicate and the pod size of an existing one. '
    'What is NULL stays as it is; an empty text removes the predicate.';
