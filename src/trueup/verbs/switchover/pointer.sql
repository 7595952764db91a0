-- name: install
-- Installed in both databases of a switchover. A row says whether this database is in use; the row of the other one
-- says the opposite.


CREATE TABLE IF NOT EXISTS trueup.switchover (
    sync text PRIMARY KEY,
    -- The name that the user chose, and that applications use: `sync` without its suffix (see verbs/sync/identity/naming.py).
    named text NOT NULL GENERATED ALWAYS AS (regexp_replace(sync, '__[0-9a-f]{6}$', '')) STORED,
    -- The identity of the sync and its way back, which the transactions of its rounds show in the setting trueup.sync.
    sync_id text NOT NULL,
    -- The two databases: several syncs of one database may have the same name elsewhere.
    pair text NOT NULL,
    -- idle, in_progress: this database is in use; use_next: the next one is in use, and this one refuses writes.
    state text NOT NULL CHECK (state IN ('idle', 'in_progress', 'use_next')),
    is_first boolean NOT NULL,
    name text NOT NULL,
    next_name text NOT NULL,
    next_address text NOT NULL,
    -- Whether the address was given for applications; else it is the one that trueup uses.
    next_given boolean NOT NULL DEFAULT false,
    -- The number of decisions and openings.
    epoch bigint NOT NULL DEFAULT 0,
    attempt text,
    -- The session that executes, resets or finishes the switchover. It is not running any more if no such session exists.
    holder integer,
    holder_since timestamptz,
    phase text NOT NULL DEFAULT '',
    -- Opens the next database; set by the decision here. The next database has its hash before that.
    token text,
    token_hash bytea,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The tables and partitions with a guard of this sync, and when the last guard was created.
    guarded oid[] NOT NULL DEFAULT '{}',
    guarded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    decided_at timestamptz,
    opened_at timestamptz,
    -- When the switchover was finished. use_next: this database stays closed for good. idle: it is in use, and the other
    -- one did not answer; if that one comes back and accepts writes, this row shows it.
    finished_at timestamptz,
    report jsonb
);

-- Always empty. Writers lock it in ROW SHARE mode until their transaction ends, a switchover in EXCLUSIVE mode: unlike an
-- advisory lock, that needs a privilege on the table, and no role but the owner has one.
CREATE TABLE IF NOT EXISTS trueup.switchover_lock ();
COMMENT ON TABLE trueup.switchover_lock IS
    'Writers of guarded tables hold this table in ROW SHARE mode, a switchover in EXCLUSIVE mode.';

-- Raises an error if the snapshot of the transaction does not show the last decision or opening. The sequence has the
-- transaction of that change: its value is visible without a snapshot, and after a crash exactly as it was set.
CREATE OR REPLACE FUNCTION trueup.switchover_check_snapshot(sync text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    changed bigint := pg_sequence_last_value(to_regclass(format('trueup.%I', 'switchover_changed_' || sync)));
BEGIN
    IF NOT pg_visible_in_snapshot(changed::text::xid8, pg_current_snapshot()) THEN
        BEGIN
            PERFORM pg_xact_status(changed::text::xid8);
        EXCEPTION WHEN invalid_parameter_value THEN
            -- It is in the future: the number is of another server, whose dump was restored here.
            RETURN;
        END;
        RAISE EXCEPTION 'a switchover was decided after this transaction began'
              USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
    END IF;
END
$$;

-- Called by the transaction of each decision and opening.
CREATE OR REPLACE FUNCTION trueup.switchover_changed(sync text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM setval(format('trueup.%I', 'switchover_changed_' || sync)::regclass, pg_current_xact_id()::text::bigint);
END
$$;

-- Runs before every statement that writes. Every writer holds the shared lock until its transaction ends, so the holder
-- of the exclusive lock is the only writer. Transactions of the sync may write only to a database that is not in use: any role
-- can set the setting trueup.sync, so the session must also be a member of the role that owns this function.
CREATE OR REPLACE FUNCTION trueup.switchover_guard() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    p record;
    is_sync boolean;
BEGIN
    LOCK TABLE trueup.switchover_lock IN ROW SHARE MODE;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM trueup.switchover_check_snapshot(TG_ARGV[0]);
    END IF;
    SELECT s.state, s.name, s.next_name, s.next_address, s.sync_id INTO p
      FROM trueup.switchover s WHERE s.sync = TG_ARGV[0];
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    is_sync := coalesce(current_setting('trueup.sync', true) = p.sync_id, false)
               AND pg_has_role(session_user, current_user, 'MEMBER');
    IF is_sync AND p.state <> 'use_next' THEN
        RAISE EXCEPTION '% is in use: a sync must not write to it', p.name
              USING ERRCODE = 'read_only_sql_transaction',
                    HINT = 'Stop this sync: applications have moved to this database.';
    ELSIF p.state = 'use_next' AND NOT is_sync THEN
        RAISE EXCEPTION '%.% on % does not accept writes: % is in use (%)',
                        TG_TABLE_SCHEMA, TG_TABLE_NAME, p.name, p.next_name, p.next_address
              USING ERRCODE = 'read_only_sql_transaction',
                    HINT = 'Connect to ' || p.next_name || '. trueup.connect follows the pointer.';
    END IF;
    RETURN NULL;
END
$$;

-- name: install_functions
-- In a schema of their own, which contains no tables: a role that may use the schema of a table can request locks on it (CREATE
-- RULE waits for its lock before it checks privileges), and all writers would wait behind that request.

-- Called by an application first in each transaction: waits during a pause, then returns which database is in use.
-- A role that may not write to a guarded table takes no lock, and so cannot delay a switchover.
-- Several syncs of this database may have the name: all but one have a suffix (see verbs/sync/identity/naming.py). The database is in
-- use if none of them has moved the applications away.
CREATE OR REPLACE FUNCTION trueup_app.switchover_enter(sync text DEFAULT 'main',
    OUT state text, OUT next_name text, OUT next_address text, OUT token text, OUT next_given boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- The role of the caller: current_user is the owner of this function.
    caller name := CASE current_setting('role') WHEN 'none' THEN session_user ELSE current_setting('role')::name END;
    -- Every transaction of an application waits for this function: an expression without a query takes a tenth of the time
    -- of a query, and a sort or an aggregate of one row as long as reading the row.
    is_writer boolean := has_table_privilege(caller, 'trueup.switchover_lock'::regclass, 'SELECT');
    has_suffixes boolean;
BEGIN
    IF NOT is_writer THEN
        PERFORM FROM trueup.switchover s
          WHERE (s.sync = switchover_enter.sync OR s.named = switchover_enter.sync) AND EXISTS (
                SELECT FROM unnest(s.guarded) g WHERE has_any_column_privilege(caller, g, 'INSERT, UPDATE')
                                                   OR has_table_privilege(caller, g, 'DELETE, TRUNCATE'));
        is_writer := FOUND;
    END IF;
    IF is_writer THEN
        LOCK TABLE trueup.switchover_lock IN ROW SHARE MODE;
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM trueup.switchover_check_snapshot(s.sync) FROM trueup.switchover s
          WHERE s.sync <> switchover_enter.sync AND s.named = switchover_enter.sync;
        -- Also if its row is not visible.
        PERFORM trueup.switchover_check_snapshot(sync);
    END IF;
    SELECT s.state, s.next_name, s.next_address, s.token, s.next_given,
           EXISTS (SELECT FROM trueup.switchover o WHERE o.sync <> o.named)
      INTO state, next_name, next_address, token, next_given, has_suffixes
      FROM trueup.switchover s WHERE s.sync = switchover_enter.sync OR s.named = switchover_enter.sync;
    -- Without suffixes, at most one row has the name.
    IF has_suffixes THEN
        SELECT s.state, s.next_name, s.next_address, s.token, s.next_given
          INTO state, next_name, next_address, token, next_given
          FROM trueup.switchover s
         WHERE s.sync = switchover_enter.sync OR s.named = switchover_enter.sync
         ORDER BY s.state = 'use_next' DESC, s.decided_at DESC NULLS LAST, s.sync LIMIT 1;
    END IF;
    IF state IS NULL THEN
        RAISE EXCEPTION 'this database has no pointer of the sync %', sync
              USING ERRCODE = 'undefined_object', HINT = 'Run trueup switchover prepare.';
    END IF;
END
$$;

-- Opens this database for writes. Only the row of the other database has the token, and only after the decision: so an
-- application may call this too, if the process of the switchover was killed in that moment.
CREATE OR REPLACE FUNCTION trueup_app.switchover_open(sync text, token text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- With its suffix.
    found_sync text;
BEGIN
    -- Checked before the lock: every role may call this function.
    SELECT s.sync INTO found_sync FROM trueup.switchover s
     WHERE switchover_open.sync IN (s.sync, s.named) AND s.state = 'use_next'
       AND s.token_hash = sha256(convert_to(switchover_open.token, 'UTF8'));
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- Wait for transactions of the sync.
    LOCK TABLE trueup.switchover_lock IN EXCLUSIVE MODE;
    UPDATE trueup.switchover s
       SET state = 'idle', token = NULL, token_hash = NULL, epoch = epoch + 1,
           phase = 'in use', opened_at = clock_timestamp(), changed_at = clock_timestamp()
     WHERE s.sync = found_sync AND s.state = 'use_next'
       AND s.token_hash = sha256(convert_to(switchover_open.token, 'UTF8'));
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- Ends the epoch of the sync: it writes nothing more, not even the value of a sequence, which has no guard.
    IF has_table_privilege(to_regclass('trueup.syncs'), 'UPDATE') THEN
        UPDATE trueup.syncs s SET epoch = s.epoch + 1
          FROM trueup.switchover p WHERE p.sync = found_sync AND s.id = p.sync_id;
    END IF;
    PERFORM trueup.switchover_changed(found_sync);
    RETURN true;
END
$$;

-- name: grant
-- Only what applications call. A role whose writes go through views or functions needs SELECT on trueup.switchover_lock,
-- so that it waits during a pause.
GRANT USAGE ON SCHEMA trueup_app TO PUBLIC;
GRANT EXECUTE ON FUNCTION trueup_app.switchover_enter(text), trueup_app.switchover_open(text, text) TO PUBLIC

-- name: is_current
SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('trueup.switchover') AND attname = 'named')

-- name: create
INSERT INTO trueup.switchover (sync, sync_id, pair, state, is_first, name, next_name, next_address, next_given)
VALUES (%(sync)s, %(id)s, %(pair)s, %(state)s, %(is_first)s, %(name)s, %(next_name)s, %(next_address)s, %(next_given)s)
ON CONFLICT (sync) DO NOTHING

-- name: rename
-- An address for applications is replaced by another one only.
UPDATE trueup.switchover
   SET name = %(name)s, next_name = %(next_name)s, next_given = next_given OR %(next_given)s,
       next_address = CASE WHEN next_given AND NOT %(next_given)s THEN next_address ELSE %(next_address)s END
 WHERE sync = %(sync)s AND sync_id = %(id)s

-- name: changed
SELECT trueup.switchover_changed(%(sync)s)

-- name: read
SELECT sync, sync_id, pair, state, is_first, name, next_name, next_address, epoch, coalesce(attempt, '') AS attempt, phase, token,
       changed_at::text AS changed_at, decided_at::text AS decided_at, opened_at::text AS opened_at, finished_at::text AS finished_at, report,
       s.token_hash IS NOT NULL AS expects_token
  FROM trueup.switchover s WHERE sync = %(sync)s

-- name: claim
-- One session at a time. Other roles may not see when a session began: then the process is enough.
UPDATE trueup.switchover s
   SET holder = pg_backend_pid(),
       holder_since = (SELECT a.backend_start FROM pg_stat_activity a WHERE a.pid = pg_backend_pid())
 WHERE s.sync = %(sync)s
   AND NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = s.holder AND a.pid <> pg_backend_pid()
                      AND coalesce(a.backend_start = s.holder_since, true))

-- name: unclaim
UPDATE trueup.switchover SET holder = NULL, holder_since = NULL WHERE sync = %(sync)s AND holder = pg_backend_pid()

-- name: holders
-- The session that executes, resets or finishes the switchover, if there is one.
SELECT a.pid, coalesce(a.application_name, ''), coalesce(a.usename::text, '')
  FROM trueup.switchover s JOIN pg_stat_activity a ON a.pid = s.holder AND coalesce(a.backend_start = s.holder_since, true)
 WHERE s.sync = %(sync)s

-- name: session
SELECT a.pid, a.backend_start FROM pg_stat_activity a WHERE a.pid = pg_backend_pid()

-- name: end_session
-- No rows: the session has ended.
SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a WHERE a.pid = %(pid)s AND coalesce(a.backend_start = %(since)s, true)

-- name: guarded_now
UPDATE trueup.switchover
   SET guarded_at = CASE WHEN %(is_new)s THEN clock_timestamp() ELSE guarded_at END,
       guarded = ARRAY(SELECT g.tgrelid FROM pg_trigger g WHERE g.tgname = %(trigger)s
                          AND g.tgfoid = to_regprocedure('trueup.switchover_guard()') ORDER BY 1)
 WHERE sync = %(sync)s

-- name: closed_since
-- Since when only the sync can write to a database that is not in use.
SELECT greatest(guarded_at, decided_at) FROM trueup.switchover WHERE sync = %(sync)s AND state = 'use_next'

-- name: begin_attempt
UPDATE trueup.switchover SET state = 'in_progress', attempt = %(attempt)s, phase = %(phase)s, changed_at = clock_timestamp()
 WHERE sync = %(sync)s AND state <> 'use_next' AND holder = pg_backend_pid()

-- name: expect_token
UPDATE trueup.switchover SET token_hash = sha256(convert_to(%(token)s, 'UTF8')), changed_at = clock_timestamp()
 WHERE sync = %(sync)s AND state = 'use_next'

-- name: end_attempt
-- Without a decision.
UPDATE trueup.switchover SET state = 'idle', attempt = NULL, phase = %(phase)s, changed_at = clock_timestamp()
 WHERE sync = %(sync)s AND state = 'in_progress' AND attempt = %(attempt)s

-- name: closed_by
-- Other switchovers after which this database refuses writes to one of these tables.
SELECT o.sync, o.next_name FROM trueup.switchover o
 WHERE o.sync <> %(sync)s AND o.state = 'use_next' AND o.guarded && %(oids)s::oid[] ORDER BY 1

-- name: written_by
-- Other syncs that write these tables.
SELECT s.sync, s.id FROM trueup.syncs s
 WHERE s.id <> %(id)s
   AND EXISTS (SELECT FROM trueup.sync_tables t WHERE t.sync = s.sync AND t.target_oid = ANY (%(oids)s::oid[])) ORDER BY 1

-- name: decide
-- The commit of this statement is the decision: the next database is in use. Only if this one is in use: another switchover
-- may have closed it since the attempt began.
UPDATE trueup.switchover
   SET state = 'use_next', token = %(token)s, token_hash = NULL, epoch = epoch + 1,
       phase = 'moved', decided_at = clock_timestamp(), changed_at = clock_timestamp()
 WHERE sync = %(sync)s AND state = 'in_progress' AND attempt = %(attempt)s
   AND NOT EXISTS (SELECT FROM trueup.switchover o
                    WHERE o.sync <> switchover.sync AND o.state = 'use_next' AND o.guarded && switchover.guarded)
RETURNING trueup.switchover_changed(sync)

-- name: keep_report
UPDATE trueup.switchover SET report = %(report)s::jsonb, phase = %(phase)s, attempt = NULL, changed_at = clock_timestamp()
 WHERE sync = %(sync)s

-- name: finish
-- This database is not in use, and stays closed.
UPDATE trueup.switchover
   SET finished_at = coalesce(finished_at, clock_timestamp()), token = NULL, token_hash = NULL, attempt = NULL,
       phase = 'finished', changed_at = clock_timestamp()
 WHERE sync = %(sync)s AND state = 'use_next'

-- name: close
-- Close a database that accepts writes although the other one is in use for good. The caller holds the fence.
UPDATE trueup.switchover
   SET state = 'use_next', finished_at = clock_timestamp(), token = NULL, token_hash = NULL, attempt = NULL,
       epoch = epoch + 1, phase = 'finished', decided_at = clock_timestamp(), changed_at = clock_timestamp()
 WHERE sync = %(sync)s AND state <> 'use_next'
RETURNING trueup.switchover_changed(sync)

-- name: stay_alone
-- This database is in use for good; the other one did not answer. The caller holds the fence, so that transactions of
-- the sync have ended.
UPDATE trueup.switchover
   SET state = 'idle', finished_at = clock_timestamp(), token = NULL, token_hash = NULL, attempt = NULL,
       epoch = epoch + 1, phase = 'finished', opened_at = clock_timestamp(), changed_at = clock_timestamp()
 WHERE sync = %(sync)s
RETURNING trueup.switchover_changed(sync)

-- name: end_epoch
-- The sync writes nothing more, not even the value of a sequence, which has no guard.
UPDATE trueup.syncs SET epoch = epoch + 1 WHERE id = %(id)s

-- name: remove_finished
-- A new switchover replaces the row of a finished one on the database that stayed in use.
DELETE FROM trueup.switchover WHERE sync = %(sync)s AND state = 'idle' AND finished_at IS NOT NULL

-- name: remove_one
DELETE FROM trueup.switchover WHERE sync = %(sync)s

-- name: is_last
SELECT NOT EXISTS (SELECT FROM trueup.switchover)

-- name: remove
DROP FUNCTION IF EXISTS trueup_app.switchover_enter(text);
DROP FUNCTION IF EXISTS trueup_app.switchover_open(text, text);
DROP FUNCTION IF EXISTS trueup.switchover_guard();
DROP FUNCTION IF EXISTS trueup.switchover_check_snapshot(text);
DROP FUNCTION IF EXISTS trueup.switchover_changed(text);
DROP TABLE IF EXISTS trueup.switchover_lock;
DROP TABLE IF EXISTS trueup.switchover;

-- name: relations
-- A table and all its partitions (which can be written to directly), and whether their guard is enabled.
SELECT n.nspname::text, c.relname::text, coalesce(g.tgenabled::text, '')
  FROM (SELECT to_regclass(format('%%I.%%I', %(schema)s::text, %(table)s::text)) AS root) r,
       LATERAL (SELECT r.root AS relid UNION SELECT t.relid FROM pg_partition_tree(r.root) t) p
  JOIN pg_class c ON c.oid = p.relid JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_trigger g ON g.tgrelid = c.oid AND g.tgname = %(trigger)s
                        AND g.tgfoid = to_regprocedure('trueup.switchover_guard()')
                        -- Before INSERT, DELETE, UPDATE and TRUNCATE, per statement. The owner of the table can replace it.
                        AND g.tgtype = 2 + 4 + 8 + 16 + 32 AND g.tgqual IS NULL AND g.tgattr = ''
                        AND g.tgargs = convert_to(%(sync)s::text, 'UTF8') || decode('00', 'hex')
 WHERE c.relkind IN ('r', 'p')
 ORDER BY 1, 2

-- name: guarded
-- All tables and partitions with a guard of this sync.
SELECT n.nspname::text, c.relname::text
  FROM pg_trigger g JOIN pg_class c ON c.oid = g.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE g.tgname = %(trigger)s AND g.tgfoid = to_regprocedure('trueup.switchover_guard()') ORDER BY 1, 2

-- name: without_row_guard
-- The partitioned tables of a closed database that have no trigger per row, which their partitions get, with the identity
-- of the sync and the role whose members may write for it.
SELECT n.nspname::text, c.relname::text, s.sync_id, f.proowner::regrole::name::text
  FROM trueup.switchover s, unnest(s.guarded) o (id) JOIN pg_class c ON c.oid = o.id AND c.relkind = 'p'
  JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_proc f ON f.oid = to_regprocedure('trueup.switchover_guard()')
 WHERE s.sync = %(sync)s AND s.state = 'use_next'
   AND NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = o.id AND i.inhparent = ANY (s.guarded))
   AND NOT EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = o.id AND g.tgname = %(trigger)s AND g.tgfoid = f.oid
                      AND g.tgenabled = 'A')
 ORDER BY 1, 2

-- name: row_guards
SELECT n.nspname::text, c.relname::text
  FROM pg_trigger g JOIN pg_class c ON c.oid = g.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE g.tgname = %(trigger)s AND g.tgfoid = to_regprocedure('trueup.switchover_guard()') AND g.tgparentid = 0 ORDER BY 1, 2
