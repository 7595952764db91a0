CREATE OR REPLACE FUNCTION @schema@.tube_trigger_ddl(source integer, only_lost boolean DEFAULT false) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s @schema@.sources;
    by_statement boolean;
    root_is_partitioned boolean;
    place record;
    wanted record;
    state text;
    has_old boolean;
    name text;
    statements text[] := '{}';
BEGIN
    SELECT * INTO s FROM @schema@.sources x WHERE x.source = tube_trigger_ddl.source;
    by_statement := s.capture = 'statement';
    root_is_partitioned := EXISTS (SELECT FROM pg_class c WHERE c.oid = s."table" AND c.relkind = 'p');
    FOR place IN SELECT r.relation, r.relation = s."table" AS is_root, c.relkind = 'p' AS is_partitioned
                   FROM @schema@.tube_relations(s."table") WITH ORDINALITY r(relation, at)
                   JOIN pg_class c ON c.oid = r.relation
                  -- A new partition is captured row by row.
                  WHERE NOT only_lost OR r.relation = ANY (s.covered) ORDER BY r.at LOOP
        -- Trigger, whether it is needed here, its event, and its state: A always, D disabled. Row triggers are created
        -- on the attached table; the server clones them to all partitions, including future ones.
        FOR wanted IN SELECT * FROM (VALUES
            ('insert', by_statement, 'AFTER INSERT', 'REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT', '', 'A'),
            -- Old rows too, at some cost: the key, the shard and what the predicate says of a row can change.
            ('update', by_statement, 'AFTER UPDATE',
                'REFERENCING NEW TABLE AS new_rows OLD TABLE AS old_rows FOR EACH STATEMENT', '', 'A'),
            ('delete', by_statement, 'AFTER DELETE', 'REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT', '', 'A'),
            ('truncate', true, 'AFTER TRUNCATE', 'FOR EACH STATEMENT', '', 'A'),
            -- Every row: on request, and in partitions that have no statement triggers yet.
            ('row', NOT by_statement OR root_is_partitioned, 'AFTER INSERT OR UPDATE OR DELETE', 'FOR EACH ROW', '_row',
                CASE WHEN by_statement AND NOT place.is_root THEN 'D' ELSE 'A' END),
            -- Rows that move between partitions: statement triggers do not see the rows that MERGE moves. The setting is
            -- not empty while an UPDATE or MERGE runs. Its writer can empty it, also in an expression of the statement
            -- (SET day = f(...)), so the trigger `again` restores it for each row, after all expressions of the writer.
            ('moved', by_statement AND root_is_partitioned, 'AFTER INSERT OR DELETE',
                'FOR EACH ROW WHEN (coalesce(current_setting(''@schema@.moving'', true), '''') <> '''')', '_row', 'A'),
            ('begin', by_statement AND root_is_partitioned, 'BEFORE UPDATE', 'FOR EACH STATEMENT', 'moving', 'A'),
            ('again', by_statement AND root_is_partitioned, 'BEFORE UPDATE',
                'FOR EACH ROW WHEN (coalesce(current_setting(''@schema@.moving'', true), '''') = '''')', 'moving', 'A'),
            ('end', by_statement AND root_is_partitioned, 'AFTER UPDATE', 'FOR EACH STATEMENT', 'moving', 'A')
        ) w(kind, here, event, how, function, state) LOOP
            name := '@schema@_' || s.tube || '_' || wanted.kind;
            SELECT g.tgenabled, g.tgoldtable IS NOT NULL INTO state, has_old
              FROM pg_trigger g WHERE g.tgrelid = place.relation AND g.tgname = name;
            -- Needed no more, or captured twice: no touch is lost.
            CONTINUE WHEN only_lost AND (NOT wanted.here OR wanted.state = 'D');
            IF NOT wanted.here THEN
                IF FOUND THEN
                    statements := statements || format('DROP TRIGGER IF EXISTS %I ON %s', name, place.relation);
                END IF;
                CONTINUE;
            END IF;
            IF (NOT FOUND AND (place.is_root OR wanted.how !~ 'EACH ROW')) OR (wanted.kind = 'update' AND NOT has_old) THEN
                statements := statements || format(
                    'CREATE OR REPLACE TRIGGER %I %s ON %s %s EXECUTE FUNCTION @schema@.%s',
                    name, wanted.event, place.relation, wanted.how, CASE WHEN wanted.function = 'moving'
                    -- The argument says whose trigger it is, also on a partition that was detached.
                    THEN format('tube_moving(%L)', source) ELSE format('%I()', 'touch_' || source || wanted.function) END);
                state := NULL;
            END IF;
            IF state IS DISTINCT FROM wanted.state THEN
                -- Always, also with session_replication_role = replica: repaired rows must be touched too.
                statements := statements || format('ALTER TABLE ONLY %s %s TRIGGER %I', place.relation,
                    CASE wanted.state WHEN 'A' THEN 'ENABLE ALWAYS' ELSE 'DISABLE' END, name);
            END IF;
        END LOOP;
    END LOOP;
    RETURN statements;
END
$$;
COMMENT ON FUNCTION @schema@.tube_trigger_ddl(integer, boolean) IS
    'Returns the statements that create or change the triggers of an attached table and its partitions; empty if none is '
    'needed. With only_lost: those without which touches are lost.';
