CREATE OR REPLACE FUNCTION @schema@.tube_trigger_ddl(source integer, only_lost boolean DEFAULT false) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET quote_all_identifiers = off AS $$
DECLARE
    s @schema@.sources;
    by_statement boolean;
    root_is_partitioned boolean;
    place record;
    wanted record;
    present record;
    name text;
    function regprocedure;
    arguments bytea;
    -- The triggers for each row that are created on the table: the server creates or replaces their clones, with its state.
    created text[] := '{}';
    statements text[] := '{}';
    -- Constraint triggers, which cannot be replaced: before all others, because a clone would replace one of a partition.
    drops text[] := '{}';
    -- The relations whose triggers change.
    places oid[] := '{}';
    changes text[] := '{}';
BEGIN
    SELECT * INTO s FROM @schema@.sources x WHERE x.source = tube_trigger_ddl.source;
    by_statement := s.capture = 'statement';
    root_is_partitioned := EXISTS (SELECT FROM pg_class c WHERE c.oid = s."table" AND c.relkind = 'p');
    FOR place IN SELECT r.relation, r.relation = s."table" AS is_root, c.relkind = 'p' AS is_partitioned
                   FROM @schema@.tube_relations(s."table") WITH ORDINALITY r(relation, at)
                   JOIN pg_class c ON c.oid = r.relation
                  -- A new partition is captured row by row.
                  WHERE NOT only_lost OR r.relation = ANY (s.covered) ORDER BY r.at LOOP
        -- Trigger, its type in the catalog (1 row, 2 before, 4 insert, 8 delete, 16 update, 32 truncate), whether it is needed
        -- here, its event, its tables of rows, its condition, its function, and its state: A always, D disabled. Row triggers
        -- are created on the attached table; the server clones them to all partitions, including future ones.
        FOR wanted IN SELECT * FROM (VALUES
            ('insert', 4, by_statement, 'AFTER INSERT', NULL, 'new_rows', NULL, '', 'A'),
            -- Old rows too, at some cost: the key, the shard and what the predicate says of a row can change.
            ('update', 16, by_statement, 'AFTER UPDATE', 'old_rows', 'new_rows', NULL, '', 'A'),
            ('delete', 8, by_statement, 'AFTER DELETE', 'old_rows', NULL, NULL, '', 'A'),
            ('truncate', 32, true, 'AFTER TRUNCATE', NULL, NULL, NULL, '', 'A'),
            -- Every row: on request, and in partitions that have no statement triggers yet.
            ('row', 29, NOT by_statement OR root_is_partitioned, 'AFTER INSERT OR UPDATE OR DELETE', NULL, NULL, NULL, '_row',
                -- The server creates those of a new partition with the state of its parent.
                CASE WHEN by_statement AND NOT place.is_partitioned THEN 'D' ELSE 'A' END),
            -- Rows that move between partitions: statement triggers do not see the rows that MERGE moves. The setting is
            -- not empty while an UPDATE or MERGE runs. Its writer can empty it, also in an expression of the statement
            -- (SET day = f(...)), so the trigger `again` restores it for each row, after all expressions of the writer.
            ('moved', 13, by_statement AND root_is_partitioned, 'AFTER INSERT OR DELETE', NULL, NULL, '<>', '_row', 'A'),
            ('begin', 18, by_statement AND root_is_partitioned, 'BEFORE UPDATE', NULL, NULL, NULL, 'moving', 'A'),
            ('again', 19, by_statement AND root_is_partitioned, 'BEFORE UPDATE', NULL, NULL, '=', 'moving', 'A'),
            ('end', 16, by_statement AND root_is_partitioned, 'AFTER UPDATE', NULL, NULL, NULL, 'moving', 'A')
        ) w(kind, type, here, event, old_rows, new_rows, condition, function, state) LOOP
            name := '@schema@_' || s.tube || '_' || wanted.kind;
            function := CASE WHEN wanted.function = 'moving' THEN to_regprocedure('@schema@.tube_moving()')
                        ELSE to_regprocedure(format('@schema@.%I()', 'touch_' || source || wanted.function)) END;
            -- The argument says whose trigger it is, also on a partition that was detached.
            arguments := CASE WHEN wanted.function = 'moving' THEN source::text::bytea || decode('00', 'hex') ELSE '' END;
            -- The owner of the table can replace a trigger by another one with its name, which captures less.
            SELECT g.tgenabled AS state, coalesce(g.tgtype = wanted.type AND g.tgfoid = function AND g.tgattr = ''
                   AND g.tgoldtable IS NOT DISTINCT FROM wanted.old_rows AND g.tgnewtable IS NOT DISTINCT FROM wanted.new_rows
                   AND g.tgargs = arguments AND g.tgconstraint = 0
                   AND (g.tgqual IS NULL) = (wanted.condition IS NULL)
                   -- pg_get_triggerdef would wait for locks. An expression with columns needs a table, and is not ours.
                   AND CASE WHEN g.tgqual IS NULL THEN true WHEN g.tgqual::text LIKE '%{VAR %' THEN false
                       ELSE pg_get_expr(g.tgqual, 0) = format('(COALESCE(current_setting(%L::text, true), %L::text) %s %L::text)',
                                                              '@schema@.moving', '', wanted.condition, '') END, false) AS is_ours,
                   g.tgconstraint <> 0 AND g.tgparentid = 0 AS is_constraint
              INTO present FROM pg_trigger g WHERE g.tgrelid = place.relation AND g.tgname = name;
            -- Needed no more, or captured twice: no touch is lost.
            CONTINUE WHEN only_lost AND (NOT wanted.here OR wanted.state = 'D');
            IF NOT wanted.here THEN
                IF FOUND THEN
                    changes := changes || format('DROP TRIGGER IF EXISTS %I ON %s', name, place.relation);
                    places := places || place.relation::oid;
                END IF;
                CONTINUE;
            END IF;
            IF present.is_constraint THEN
                drops := drops || format('DROP TRIGGER IF EXISTS %I ON %s', name, place.relation);
                places := places || place.relation::oid;
            END IF;
            IF present.is_ours IS NOT TRUE AND (place.is_root OR wanted.type & 1 = 0) THEN
                statements := statements || concat_ws(' ',
                    format('CREATE OR REPLACE TRIGGER %I %s ON %s', name, wanted.event, place.relation),
                    'REFERENCING ' || nullif(concat_ws(' ', 'NEW TABLE AS ' || wanted.new_rows, 'OLD TABLE AS ' || wanted.old_rows), ''),
                    CASE WHEN wanted.type & 1 = 1 THEN 'FOR EACH ROW' ELSE 'FOR EACH STATEMENT' END,
                    CASE WHEN wanted.condition IS NOT NULL THEN format(
                        'WHEN (coalesce(current_setting(%L, true), %L) %s %L)', '@schema@.moving', '', wanted.condition, '') END,
                    format('EXECUTE FUNCTION %s(%s)', function::regproc, CASE WHEN arguments <> '' THEN quote_literal(source) END));
                created := created || wanted.kind;
                places := places || CASE WHEN wanted.type & 1 = 1
                    THEN ARRAY(SELECT r::oid FROM @schema@.tube_relations(s."table") r) ELSE ARRAY[place.relation::oid] END;
            END IF;
            IF wanted.kind = ANY (created) OR present.state IS DISTINCT FROM wanted.state THEN
                -- Always, also with session_replication_role = replica: repaired rows must be touched too.
                changes := changes || format('ALTER TABLE ONLY %s %s TRIGGER %I', place.relation,
                    CASE wanted.state WHEN 'A' THEN 'ENABLE ALWAYS' ELSE 'DISABLE' END, name);
                places := places || place.relation::oid;
            END IF;
        END LOOP;
    END LOOP;
    IF cardinality(places) > 0 THEN
        -- The lock that changes of triggers take: what others changed before it is noticed, and what changes here is known. An
        -- owner without the rights that LOCK requires takes it by setting the state that a trigger has.
        statements := ARRAY(
            SELECT CASE WHEN has_table_privilege(r.relation, 'UPDATE, DELETE, TRUNCATE')
                   THEN format('LOCK TABLE ONLY %s IN SHARE ROW EXCLUSIVE MODE', r.relation)
                   ELSE format('ALTER TABLE ONLY %s %s TRIGGER %I', r.relation, CASE g.tgenabled WHEN 'A' THEN 'ENABLE ALWAYS'
                        WHEN 'R' THEN 'ENABLE REPLICA' WHEN 'D' THEN 'DISABLE' ELSE 'ENABLE' END, g.tgname) END
              FROM @schema@.tube_relations(s."table") WITH ORDINALITY r(relation, at)
              LEFT JOIN LATERAL (SELECT x.tgname, x.tgenabled FROM pg_trigger x
                                  WHERE x.tgrelid = r.relation AND starts_with(x.tgname, '@schema@_' || s.tube || '_')
                                  ORDER BY x.tgname LIMIT 1) g ON true
             WHERE r.relation::oid = ANY (places)
               AND (g.tgname IS NOT NULL OR has_table_privilege(r.relation, 'UPDATE, DELETE, TRUNCATE'))
             ORDER BY r.at)
                      || format('SELECT @schema@.tube_triggers_follow(%s)', source) || drops || statements || changes
                      || format('SELECT @schema@.tube_triggers_store(%s, %L)', source, places);
    END IF;
    RETURN statements;
END
$$;
COMMENT ON FUNCTION @schema@.tube_trigger_ddl(integer, boolean) IS
    'Returns the statements that create or change the triggers of an attached table and its partitions; empty if none is '
    'needed. With only_lost: those without which touches are lost.';
