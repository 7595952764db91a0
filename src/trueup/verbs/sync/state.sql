-- name: install

CREATE TABLE IF NOT EXISTS trueup.syncs (
    sync text PRIMARY KEY,
    -- Identifies the sync and its way back: names are unique in one database only.
    id text NOT NULL,
    source text NOT NULL,
    -- making: the schema does not exist yet; copying: rows are missing; copied: indexes and constraints are missing;
    -- building: some of them may exist; running: rounds keep the target up to date.
    phase text NOT NULL CHECK (phase IN ('making', 'copying', 'copied', 'building', 'running')),
    made_schema boolean NOT NULL,
    -- The option --no-owner.
    no_owner boolean NOT NULL DEFAULT false,
    -- What --create-schema created before the copy: catalog, oid and identity of each object.
    created jsonb NOT NULL DEFAULT '[]',
    tables text[] NOT NULL,
    -- The options --tables and --exclude-tables; no names means the whole database.
    named text[] NOT NULL,
    left_out text[] NOT NULL,
    -- What is set aside, why, and the cure: its rows are not up to date.
    aside jsonb NOT NULL DEFAULT '[]',
    -- Table -> the databases that its rows come from: the source, and the sources of the source.
    origins jsonb NOT NULL DEFAULT '{}',
    -- Number of snapshots that the copy was read in: more than one if it was interrupted and continued.
    snapshots integer NOT NULL DEFAULT 0,
    -- Each new writer takes the next number. A process with an older number (a task that outlived its driver) may not
    -- write any more.
    epoch bigint NOT NULL DEFAULT 0,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    copied_at timestamptz,
    rounds bigint NOT NULL DEFAULT 0,
    keys bigint NOT NULL DEFAULT 0,
    last_keys bigint NOT NULL DEFAULT 0,
    last_ms float8 NOT NULL DEFAULT 0,
    lag_seconds float8,
    pending_keys bigint,
    keys_per_second float8,
    stop_asked_at timestamptz,
    -- The last round that is here. The change log has the same values; others mean that a database was restored.
    round bigint NOT NULL DEFAULT 0,
    token text NOT NULL DEFAULT ''
);
COMMENT ON TABLE trueup.syncs IS 'The syncs into this database, how far they are, and the last round of each.';
CREATE TABLE IF NOT EXISTS trueup.copied (
    sync text NOT NULL REFERENCES trueup.syncs ON DELETE CASCADE,
    relation oid NOT NULL,
    -- The file that the pages were read from: after a rewrite of the table, page numbers have no meaning.
    file oid NOT NULL,
    first_page bigint NOT NULL,
    -- NULL: to the end of the file; rows added behind it since are in the change log.
    end_page bigint,
    rows bigint NOT NULL,
    copied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (sync, relation, file, first_page)
);
CREATE TABLE IF NOT EXISTS trueup.sync_disabled (
    -- Without ON DELETE CASCADE: a sync is not removed before its triggers are set again.
    sync text NOT NULL REFERENCES trueup.syncs,
    kind text NOT NULL CHECK (kind IN ('trigger', 'rule')),
    oid oid NOT NULL,
    relation oid NOT NULL,
    schema text NOT NULL,
    "table" text NOT NULL,
    name text NOT NULL,
    -- As in pg_trigger: O, A (always), R (replica).
    state "char" NOT NULL,
    PRIMARY KEY (sync, kind, oid)
);
COMMENT ON TABLE trueup.sync_disabled IS
    'Triggers and rules that a sync has disabled because its writes would fire them, and the states that they had.';
COMMENT ON TABLE trueup.copied IS 'Copied page ranges of the source, each written in one transaction with its rows.';
CREATE TABLE IF NOT EXISTS trueup.sync_tables (
    sync text NOT NULL REFERENCES trueup.syncs ON DELETE CASCADE,
    name text NOT NULL,
    -- Another table may have its name now, and it may have another name.
    source_oid oid NOT NULL,
    target_oid oid NOT NULL,
    -- Name of the column -> its numbers on the source and on the target.
    columns jsonb NOT NULL,
    PRIMARY KEY (sync, name)
);
COMMENT ON TABLE trueup.sync_tables IS 'The tables of a sync on both databases, when they were last in step.';
CREATE TABLE IF NOT EXISTS trueup.sync_left_out (
    sync text NOT NULL REFERENCES trueup.syncs ON DELETE CASCADE,
    -- Another table that gets its name is not left out.
    source_oid oid NOT NULL,
    name text NOT NULL,
    -- Who decided that.
    why text NOT NULL,
    PRIMARY KEY (sync, source_oid)
);
COMMENT ON TABLE trueup.sync_left_out IS
    'Tables of the source that are not in a sync, besides those of its options --tables and --exclude-tables.';
CREATE TABLE IF NOT EXISTS trueup.sync_large_objects (
    sync text NOT NULL REFERENCES trueup.syncs ON DELETE CASCADE,
    oid oid NOT NULL,
    PRIMARY KEY (sync, oid)
);
COMMENT ON TABLE trueup.sync_large_objects IS
    'Large objects that a start has created which is not finished: they are removed if the sync is dropped.';
CREATE TABLE IF NOT EXISTS trueup.sync_mark (
    sync text PRIMARY KEY,
    source_lsn pg_lsn,
    source_at timestamptz,
    applied_at timestamptz
);
COMMENT ON TABLE trueup.sync_mark IS
    'The position of a sync: all commits of the source before source_lsn are here, except those of tables that are set '
    'aside. 0/0: a large round is not complete.';

-- The first statement of every transaction of a sync. In a pipeline, an error skips all later statements: a process that
-- has been replaced writes nothing. Triggers of trueup compare the setting with their own sync, and check the role too.
CREATE OR REPLACE FUNCTION trueup.sync_check_epoch(sync text, epoch bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM set_config('trueup.sync', s.id, true) FROM trueup.syncs s WHERE s.sync = $1 AND s.epoch = $2 FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'another process has taken over the sync %', $1 USING ERRCODE = 'TU001';
    END IF;
END
$$;
REVOKE ALL ON FUNCTION trueup.sync_check_epoch(text, bigint) FROM PUBLIC;

-- A fingerprint of a sync and its tables, by their quoted names: another value means that a table was altered, is another
-- one, or was added to the sync or removed from it.
CREATE OR REPLACE FUNCTION trueup.sync_shape(sync text, names text[]) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tables oid[] := ARRAY(SELECT to_regclass(n.name) FROM unnest(names) WITH ORDINALITY n(name, at) ORDER BY n.at);
    tree oid[] := ARRAY(
        WITH RECURSIVE t AS (
            SELECT u.oid FROM unnest(tables) u(oid) WHERE u.oid IS NOT NULL
            UNION ALL SELECT i.inhrelid FROM t JOIN pg_inherits i ON i.inhparent = t.oid)
        SELECT t.oid FROM t ORDER BY 1);
BEGIN
    RETURN concat_ws('/', md5(tables::text), md5(tree::text),
        (SELECT sum(hashtextextended(concat_ws(':', t.source_oid, t.target_oid), 0)) FROM trueup.sync_tables t
          WHERE t.sync = sync_shape.sync),
        (SELECT sum(hashtextextended(concat_ws(':', a.attrelid, a.attnum, a.xmin), 0)) FROM pg_attribute a
          WHERE a.attrelid = ANY (tables) AND a.attnum > 0),
        (SELECT sum(hashtextextended(concat_ws(':', k.oid, k.xmin), 0)) FROM pg_constraint k WHERE k.conrelid = ANY (tree)),
        (SELECT sum(hashtextextended(concat_ws(':', i.indexrelid, i.xmin), 0)) FROM pg_index i WHERE i.indrelid = ANY (tree)),
        (SELECT sum(hashtextextended(concat_ws(':', d.oid, d.xmin), 0)) FROM pg_attrdef d WHERE d.adrelid = ANY (tree)),
        (SELECT sum(hashtextextended(concat_ws(':', s.oid, s.xmin), 0)) FROM pg_statistic_ext s WHERE s.stxrelid = ANY (tree)),
        -- The checks of domains.
        (SELECT sum(hashtextextended(concat_ws(':', k.oid, k.xmin), 0)) FROM pg_constraint k WHERE k.conrelid = 0),
        (SELECT sum(hashtextextended(concat_ws(':', e.oid, e.enumlabel), 0)) FROM pg_enum e));
END
$$;
REVOKE ALL ON FUNCTION trueup.sync_shape(text, text[]) FROM PUBLIC;

-- The second statement of a transaction that writes rows, after sync_check_epoch. The lock on the tables comes first:
-- until the end of the transaction, no other session can create or enable a trigger, a rule, a default value or a
-- constraint; where the session is a superuser's, also not rename the schema, and in a small round not attach a partition.
-- Code that was there before was checked when the shape was read, and triggers of others were disabled.
CREATE OR REPLACE FUNCTION trueup.sync_check_tables(sync text, names text[], shape text, written text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    fired text;
    parent text;
    superusers oid[] := ARRAY(SELECT r.oid FROM pg_roles r WHERE r.rolsuper);
    is_superuser boolean := EXISTS (SELECT FROM pg_roles r WHERE r.rolsuper AND r.rolname IN (current_user, session_user));
    role name := current_user;
BEGIN
    IF cardinality(written) > 0 AND is_superuser THEN
        -- No lock on a table keeps its schema from being renamed, so that another table gets its name. The role that
        -- was set may not lock it; code that it runs could go back to the superuser.
        IF current_user::regrole <> ALL (superusers) THEN
            SET LOCAL ROLE NONE;
        END IF;
        PERFORM FROM pg_namespace n
          WHERE n.oid IN (SELECT c.relnamespace FROM unnest(written) w JOIN pg_class c ON c.oid = to_regclass(w))
            AND n.nspowner <> ALL (superusers) ORDER BY n.oid FOR SHARE OF n;
        IF current_user <> role THEN
            EXECUTE format('SET LOCAL ROLE %I', role);
        END IF;
    END IF;
    IF cardinality(written) > 0 THEN
        EXECUTE format('LOCK TABLE %s IN ROW EXCLUSIVE MODE', array_to_string(written, ', '));
    END IF;
    IF is_superuser AND sync <> '' THEN
        -- Against ATTACH PARTITION. Tasks do not take this lock: only one session at a time can have it.
        FOR parent IN
            WITH RECURSIVE tree(oid) AS (
                SELECT to_regclass(w)::oid FROM unnest(written) w
                UNION SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid)
            SELECT c.oid::regclass::text FROM tree t JOIN pg_class c ON c.oid = t.oid
             WHERE c.relkind = 'p' AND c.relowner <> ALL (superusers) ORDER BY c.oid LOOP
            EXECUTE format('LOCK TABLE ONLY %s IN SHARE UPDATE EXCLUSIVE MODE', parent);
        END LOOP;
    END IF;
    IF trueup.sync_shape(sync, names) IS DISTINCT FROM shape THEN
        RAISE EXCEPTION 'a synced table was altered or replaced' USING ERRCODE = 'TU002';
    END IF;
    WITH RECURSIVE tree(oid) AS (
        SELECT to_regclass(w)::oid FROM unnest(written) w
        UNION SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid
    ), me AS (
        SELECT bool_or(r.rolsuper) AS is_superuser, current_setting('session_replication_role') = 'replica' AS is_silent
          FROM pg_roles r WHERE r.rolname IN (current_user, session_user)
    ), fires AS (
        SELECT format('the trigger %I', g.tgname) AS what, g.tgrelid AS relation, g.tgenabled AS state
          FROM tree t JOIN pg_trigger g ON g.tgrelid = t.oid JOIN pg_proc p ON p.oid = g.tgfoid
          JOIN pg_roles o ON o.oid = p.proowner CROSS JOIN me
         WHERE (NOT g.tgisinternal OR g.tgparentid <> 0)
           AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.oid = g.tgconstraint AND k.contype <> 't')
           -- Triggers of trueup, unless a role could replace their functions that must not have the rights of this one.
           AND NOT ((coalesce(obj_description(p.pronamespace, 'pg_namespace'), '') = 'Tubes of trueup.'
                     OR p.oid = to_regprocedure('trueup.switchover_guard()'))
                    AND (o.rolsuper OR o.rolname = current_user OR NOT me.is_superuser))
        UNION ALL
        SELECT format('the rule %I', r.rulename), r.ev_class, r.ev_enabled
          FROM tree t JOIN pg_rewrite r ON r.ev_class = t.oid WHERE r.ev_type <> '1'
    )
    SELECT format('%s of %s', f.what, f.relation::regclass) INTO fired FROM fires f, me
     WHERE f.state = ANY (CASE WHEN me.is_silent THEN '{A,R}'::"char"[] ELSE '{O,A}' END) ORDER BY 1 LIMIT 1;
    IF fired IS NOT NULL THEN
        RAISE EXCEPTION '%', fired USING ERRCODE = 'TU003';
    END IF;
END
$$;
REVOKE ALL ON FUNCTION trueup.sync_check_tables(text, text[], text, text[]) FROM PUBLIC;

-- The last statement of a transaction that writes rows. A role without superuser rights cannot lock a schema.
CREATE OR REPLACE FUNCTION trueup.sync_check_names(names text[], shape text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF md5(ARRAY(SELECT to_regclass(n.name)::oid FROM unnest(names) WITH ORDINALITY n(name, at) ORDER BY n.at)::text)
       IS DISTINCT FROM split_part(shape, '/', 1) THEN
        RAISE EXCEPTION 'a synced table was replaced' USING ERRCODE = 'TU002';
    END IF;
END
$$;
REVOKE ALL ON FUNCTION trueup.sync_check_names(text[], text) FROM PUBLIC;

-- name: uninstall
DROP TABLE IF EXISTS trueup.sync_disabled;
DROP TABLE IF EXISTS trueup.sync_large_objects;
DROP TABLE trueup.copied, trueup.sync_left_out, trueup.sync_tables, trueup.syncs, trueup.sync_mark;
DROP FUNCTION IF EXISTS trueup.sync_check_epoch(text, bigint), trueup.sync_check_tables(text, text[], text, text[]),
    trueup.sync_check_names(text[], text), trueup.sync_shape(text, text[])

-- name: create
INSERT INTO trueup.syncs (sync, id, source, phase, made_schema, no_owner, tables, named, left_out)
VALUES (%(sync)s, %(id)s, %(source)s, %(phase)s, %(made)s, %(no_owner)s, %(tables)s, %(named)s, %(left_out)s)
ON CONFLICT (sync) DO NOTHING

-- name: read
SELECT s.sync, s.id, s.source, s.phase, s.made_schema, s.no_owner, s.tables, s.named, s.left_out, s.aside, s.snapshots, s.epoch, s.started_at, s.copied_at, s.rounds, s.keys,
       s.last_keys, s.last_ms, s.lag_seconds, s.pending_keys, s.keys_per_second, s.stop_asked_at, s.round, s.token,
       m.source_lsn::text AS source_lsn, m.source_at, m.applied_at
  FROM trueup.syncs s LEFT JOIN trueup.sync_mark m USING (sync) WHERE s.sync = %s

-- name: set_position
INSERT INTO trueup.sync_mark (sync, source_lsn, source_at, applied_at)
VALUES (%(sync)s, %(lsn)s, %(at)s, clock_timestamp())
    ON CONFLICT (sync) DO UPDATE SET source_lsn = excluded.source_lsn, source_at = excluded.source_at,
                                     applied_at = excluded.applied_at

-- name: clear_position
UPDATE trueup.sync_mark SET source_lsn = '0/0', applied_at = clock_timestamp() WHERE sync = %(sync)s

-- name: advance_position
UPDATE trueup.sync_mark
   SET source_lsn = greatest(source_lsn, %(position)s::pg_lsn), source_at = clock_timestamp(), applied_at = clock_timestamp()
 WHERE sync = %(sync)s

-- name: members
SELECT name, source_oid::bigint, target_oid::bigint, columns FROM trueup.sync_tables WHERE sync = %s

-- name: members_locked
SELECT name, source_oid::bigint, target_oid::bigint, columns FROM trueup.sync_tables WHERE sync = %s FOR UPDATE

-- name: set_member
INSERT INTO trueup.sync_tables (sync, name, source_oid, target_oid, columns)
VALUES (%(sync)s, %(name)s, %(source)s, %(target)s, %(columns)s)
    ON CONFLICT (sync, name) DO UPDATE SET source_oid = excluded.source_oid, target_oid = excluded.target_oid,
                                           columns = excluded.columns

-- name: large_object_created
INSERT INTO trueup.sync_large_objects (sync, oid) VALUES (%s, %s)

-- name: large_objects_kept
DELETE FROM trueup.sync_large_objects WHERE sync = %s

-- name: remove_members
DELETE FROM trueup.sync_tables WHERE sync = %(sync)s AND name = ANY(%(names)s)

-- name: set_tables
UPDATE trueup.syncs SET tables = %(tables)s, left_out = %(left_out)s WHERE sync = %(sync)s

-- name: left_out
SELECT source_oid::bigint, why FROM trueup.sync_left_out WHERE sync = %s

-- name: leave_out
INSERT INTO trueup.sync_left_out (sync, source_oid, name, why)
SELECT %(sync)s, x.oid, x.name, %(why)s FROM unnest(%(oids)s::oid[], %(names)s::text[]) x(oid, name)
    ON CONFLICT (sync, source_oid) DO NOTHING

-- name: take_in
DELETE FROM trueup.sync_left_out WHERE sync = %(sync)s AND source_oid = ANY(%(oids)s::oid[])

-- name: set_aside
UPDATE trueup.syncs SET aside = %(aside)s WHERE sync = %(sync)s AND aside <> %(aside)s

-- name: columns
-- With the attributes of composite types in a column by their numbers: one that was dropped and added again has no values.
WITH RECURSIVE inside AS (
    SELECT a.attrelid AS root, a.attnum AS number, a.atttypid AS oid FROM pg_attribute a
     WHERE a.attrelid = ANY(%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid >= 16384
    UNION
    SELECT i.root, i.number, part.oid
      FROM inside i JOIN pg_type t ON t.oid = i.oid,
           LATERAL (SELECT t.typbasetype WHERE t.typtype = 'd'
                    UNION ALL SELECT t.typelem WHERE t.typcategory = 'A'
                    UNION ALL SELECT f.atttypid FROM pg_attribute f
                               WHERE t.typtype = 'c' AND f.attrelid = t.typrelid AND f.attnum > 0 AND NOT f.attisdropped
           ) part(oid)
     WHERE part.oid >= 16384
), made AS (
    SELECT i.root, i.number, string_agg(format('%%s.%%s', f.attrelid, f.attnum), ' ' ORDER BY f.attrelid, f.attnum) AS text
      FROM inside i JOIN pg_type t ON t.oid = i.oid AND t.typtype = 'c'
      JOIN pg_attribute f ON f.attrelid = t.typrelid AND f.attnum > 0 AND NOT f.attisdropped GROUP BY 1, 2)
SELECT a.attrelid::bigint, a.attname::text, a.attnum::int,
       CASE WHEN a.attgenerated <> '' THEN 'computed' WHEN a.atthasmissing OR a.atthasdef OR a.attidentity <> '' THEN 'filled'
            ELSE '' END, coalesce(m.text, '')
  FROM pg_attribute a LEFT JOIN made m ON m.root = a.attrelid AND m.number = a.attnum
 WHERE a.attrelid = ANY(%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped

-- name: expressions
SELECT d.adrelid::bigint, a.attname::text, pg_get_expr(d.adbin, d.adrelid)
  FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
 WHERE d.adrelid = ANY(%(oids)s::oid[]) AND a.attgenerated <> ''

-- name: enums
WITH RECURSIVE inside AS (
    SELECT a.attrelid AS root, a.atttypid AS oid FROM pg_attribute a
     WHERE a.attrelid = ANY(%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
    UNION
    SELECT i.root, part.oid
      FROM inside i JOIN pg_type t ON t.oid = i.oid,
           LATERAL (SELECT t.typbasetype WHERE t.typtype = 'd'
                    UNION ALL SELECT t.typelem WHERE t.typcategory = 'A'
                    UNION ALL SELECT r.rngsubtype FROM pg_range r
                               WHERE t.oid IN (r.rngtypid, (to_jsonb(r) ->> 'rngmultitypid')::oid)
                    UNION ALL SELECT f.atttypid FROM pg_attribute f
                               WHERE t.typtype = 'c' AND f.attrelid = t.typrelid AND f.attnum > 0 AND NOT f.attisdropped
           ) part(oid)
     WHERE t.typtype <> 'b' OR t.typcategory = 'A')
SELECT t.oid::bigint, n.nspname::text, t.typname::text,
       ARRAY(SELECT e.enumlabel::text FROM pg_enum e WHERE e.enumtypid = t.oid ORDER BY e.enumsortorder),
       array_agg(i.root::bigint)
  FROM inside i JOIN pg_type t ON t.oid = i.oid AND t.typtype = 'e' JOIN pg_namespace n ON n.oid = t.typnamespace
 GROUP BY t.oid, n.nspname, t.typname ORDER BY 2, 3

-- name: shape
SELECT trueup.sync_shape(%(sync)s, %(names)s)

-- name: shapes
-- Of single tables, without the sync.
SELECT n, trueup.sync_shape('', ARRAY[n]) FROM unnest(%(names)s::text[]) n

-- name: check_tables
SELECT trueup.sync_check_tables(%(sync)s, %(names)s, %(shape)s, %(written)s)

-- name: check_names
SELECT trueup.sync_check_names(%(names)s, %(shape)s)

-- name: set_mark
UPDATE trueup.syncs SET round = %(round)s, token = %(token)s WHERE sync = %(sync)s

-- name: count_round
UPDATE trueup.syncs
   SET rounds = rounds + 1, keys = keys + %(keys)s, last_keys = %(keys)s, last_ms = %(ms)s, lag_seconds = %(lag)s,
       pending_keys = %(pending)s, keys_per_second = %(rate)s
 WHERE sync = %(sync)s RETURNING stop_asked_at IS NOT NULL

-- name: count_empty_round
UPDATE trueup.syncs SET lag_seconds = 0, pending_keys = 0 WHERE sync = %(sync)s RETURNING stop_asked_at IS NOT NULL

-- name: ask_to_stop
-- A time that is ahead: the session that asks takes the sync lock until then, and the sync may continue afterwards.
UPDATE trueup.syncs SET stop_asked_at = clock_timestamp() + %(ahead)s WHERE sync = %(sync)s

-- name: is_short_stop
SELECT coalesce(bool_or(stop_asked_at > clock_timestamp()), false) FROM trueup.syncs WHERE sync = %(sync)s

-- name: count_snapshot
UPDATE trueup.syncs SET snapshots = snapshots + 1 WHERE sync = %s RETURNING snapshots

-- name: take_over
-- Waits for open transactions of the former writer; its later ones fail in sync_check_epoch.
UPDATE trueup.syncs SET epoch = epoch + 1, stop_asked_at = NULL WHERE sync = %s RETURNING epoch

-- name: check_epoch
SELECT trueup.sync_check_epoch(%(sync)s, %(epoch)s)

-- name: copied
INSERT INTO trueup.copied (sync, relation, file, first_page, end_page, rows) VALUES (%s, %s, %s, %s, %s, 0)
    ON CONFLICT DO NOTHING RETURNING true

-- name: other_roles
-- The owners of trigger functions that must recognize this sync, and whose roles this session is not a member of.
SELECT DISTINCT p.proowner::regrole::text
  FROM pg_proc p
 WHERE p.prorettype = 'trigger'::regtype AND NOT pg_has_role(session_user, p.proowner, 'MEMBER')
   AND (p.pronamespace = to_regnamespace('trueup_log') AND strpos(p.prosrc, %(id)s) > 0
        OR %(guarded)s AND p.oid = to_regprocedure('trueup.switchover_guard()'))

-- name: closed_by
SELECT p.sync, p.next_name, p.finished_at IS NOT NULL FROM trueup.switchover p
 WHERE p.state = 'use_next' AND p.guarded && ARRAY(SELECT to_regclass(t)::oid FROM unnest(%(tables)s::text[]) t) ORDER BY 1

-- name: may_read
SELECT coalesce(has_table_privilege(to_regclass('trueup.syncs'), 'SELECT'), false)

-- name: origins
-- Table -> the databases that its rows come from, by all syncs into this database but one.
SELECT t.name, array_agg(DISTINCT o.origin)
  FROM trueup.syncs s
 CROSS JOIN LATERAL unnest(s.tables) t(name)
 CROSS JOIN LATERAL (SELECT s.source UNION SELECT jsonb_array_elements_text(s.origins -> t.name)) o(origin)
 WHERE s.id <> %(id)s GROUP BY t.name

-- name: set_origins
UPDATE trueup.syncs SET origins = %(origins)s WHERE sync = %(sync)s AND origins <> %(origins)s

-- name: refuse_opening
UPDATE trueup.switchover p SET token_hash = NULL
  FROM trueup.syncs s WHERE s.sync = %(sync)s AND p.sync_id = s.id AND p.state = 'use_next' AND p.token_hash IS NOT NULL

-- name: is_complete
SELECT to_regprocedure('trueup.sync_check_epoch(text, bigint)') IS NOT NULL AND to_regclass('trueup.sync_disabled') IS NOT NULL
       AND to_regclass('trueup.sync_left_out') IS NOT NULL
       AND to_regprocedure('trueup.sync_shape(text, text[])') IS NOT NULL
       AND to_regprocedure('trueup.sync_check_tables(text, text[], text, text[])') IS NOT NULL
       AND to_regprocedure('trueup.sync_check_names(text[], text)') IS NOT NULL
