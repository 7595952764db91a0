-- name: install
-- Installed in both databases of a switchover. A row says whether this database is in use; the row of the other one
-- says the opposite. @family@ and @application@ are the advisory lock of db/locks.py.
CREATE SCHEMA IF NOT EXISTS trueup;
GRANT USAGE ON SCHEMA trueup TO PUBLIC;

CREATE TABLE IF NOT EXISTS trueup.switchover (
    sync text PRIMARY KEY,
    -- The identity of the sync and its way back, which the transactions of its rounds show in the setting trueup.sync.
    sync_id text NOT NULL,
    -- idle, in_progress: this database is in use; use_next: the next one is in use, and this one refuses writes.
    state text NOT NULL CHECK (state IN ('idle', 'in_progress', 'use_next')),
    is_first boolean NOT NULL,
    name text NOT NULL,
    next_name text NOT NULL,
    next_address text NOT NULL,
    -- Grows with each decision, as does a sequence: a transaction with an older snapshot sees the decision there.
    epoch bigint NOT NULL,
    attempt text,
    phase text NOT NULL DEFAULT '',
    -- Opens the next database; set by the decision here. The next database has its hash before that.
    token text,
    token_hash bytea,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- When the last guard was created here.
    guarded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    decided_at timestamptz,
    opened_at timestamptz,
    report jsonb
);
GRANT SELECT ON trueup.switchover TO PUBLIC;
CREATE SEQUENCE IF NOT EXISTS trueup.switchover_epoch;

-- Runs before every statement that writes. Every writer holds the shared lock until its transaction ends, so the holder
-- of the exclusive lock is the only writer. Transactions of the sync may write only to a database that is not in use: any role
-- can set the setting trueup.sync, so the session must also be a member of the role that owns this function.
CREATE OR REPLACE FUNCTION trueup.switchover_guard() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    p record;
    is_sync boolean;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(@family@, @application@);
    SELECT s.state, s.name, s.next_name, s.next_address, s.epoch, s.sync_id INTO p
      FROM trueup.switchover s WHERE s.sync = TG_ARGV[0];
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    is_sync := coalesce(current_setting('trueup.sync', true) = p.sync_id, false)
               AND pg_has_role(session_user, current_user, 'MEMBER');
    -- A snapshot that is older than the decision does not show it; the sequence does.
    IF current_setting('transaction_isolation') <> 'read committed'
       AND p.epoch <> (SELECT e.last_value FROM trueup.switchover_epoch e) THEN
        RAISE EXCEPTION 'a switchover of % was decided after this transaction began', p.name
              USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
    END IF;
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

-- Called by an application first in each transaction: waits during a pause, then returns which database is in use.
CREATE OR REPLACE FUNCTION trueup.switchover_enter(sync text DEFAULT 'main',
    OUT state text, OUT next_name text, OUT next_address text, OUT token text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    epoch bigint;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(@family@, @application@);
    SELECT s.state, s.next_name, s.next_address, s.token, s.epoch INTO state, next_name, next_address, token, epoch
      FROM trueup.switchover s WHERE s.sync = switchover_enter.sync;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'this database has no pointer of the sync %', sync
              USING ERRCODE = 'undefined_object', HINT = 'Run trueup switchover prepare.';
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed'
       AND epoch <> (SELECT e.last_value FROM trueup.switchover_epoch e) THEN
        RAISE EXCEPTION 'a switchover was decided after this transaction began'
              USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
    END IF;
END
$$;

-- Opens this database for writes. Only the row of the other database has the token, and only after the decision: so an
-- application may call this too, if the process of the switchover was killed in that moment.
CREATE OR REPLACE FUNCTION trueup.switchover_open(sync text, token text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- Wait for transactions of the sync.
    PERFORM pg_advisory_xact_lock(@family@, @application@);
    UPDATE trueup.switchover s
       SET state = 'idle', token = NULL, token_hash = NULL, epoch = nextval('trueup.switchover_epoch'),
           phase = 'in use', opened_at = clock_timestamp(), changed_at = clock_timestamp()
     WHERE s.sync = switchover_open.sync AND s.state = 'use_next'
       AND s.token_hash = sha256(convert_to(switchover_open.token, 'UTF8'));
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- Ends the epoch of the sync: it writes nothing more, not even the value of a sequence, which has no guard.
    IF has_table_privilege(to_regclass('trueup.syncs'), 'UPDATE') THEN
        UPDATE trueup.syncs s SET epoch = s.epoch + 1
          FROM trueup.switchover p WHERE p.sync = switchover_open.sync AND s.id = p.sync_id;
    END IF;
    RETURN true;
END
$$;

-- name: create
INSERT INTO trueup.switchover (sync, sync_id, state, is_first, name, next_name, next_address, epoch)
VALUES (%(sync)s, %(id)s, %(state)s, %(is_first)s, %(name)s, %(next_name)s, %(next_address)s, nextval('trueup.switchover_epoch'))
ON CONFLICT (sync) DO UPDATE SET name = excluded.name, next_name = excluded.next_name, next_address = excluded.next_address
 WHERE switchover.sync_id = excluded.sync_id

-- name: read
SELECT sync, sync_id, state, is_first, name, next_name, next_address, epoch, coalesce(attempt, '') AS attempt, phase, token,
       changed_at::text AS changed_at, decided_at::text AS decided_at, opened_at::text AS opened_at, report,
       s.token_hash IS NOT NULL AS expects_token
  FROM trueup.switchover s WHERE sync = %(sync)s

-- name: guarded_now
UPDATE trueup.switchover SET guarded_at = clock_timestamp() WHERE sync = %(sync)s

-- name: closed_since
-- Since when only the sync can write to a database that is not in use.
SELECT greatest(guarded_at, decided_at) FROM trueup.switchover WHERE sync = %(sync)s AND state = 'use_next'

-- name: begin_attempt
UPDATE trueup.switchover SET state = 'in_progress', attempt = %(attempt)s, phase = %(phase)s, changed_at = clock_timestamp()
 WHERE sync = %(sync)s AND state <> 'use_next'

-- name: expect_token
UPDATE trueup.switchover SET token_hash = sha256(convert_to(%(token)s, 'UTF8')), changed_at = clock_timestamp()
 WHERE sync = %(sync)s AND state = 'use_next'

-- name: end_attempt
-- Without a decision.
UPDATE trueup.switchover SET state = 'idle', attempt = NULL, phase = %(phase)s, changed_at = clock_timestamp()
 WHERE sync = %(sync)s AND state = 'in_progress' AND attempt = %(attempt)s

-- name: decide
-- The commit of this statement is the decision: the next database is in use.
UPDATE trueup.switchover
   SET state = 'use_next', token = %(token)s, token_hash = NULL, epoch = nextval('trueup.switchover_epoch'),
       phase = 'moved', decided_at = clock_timestamp(), changed_at = clock_timestamp()
 WHERE sync = %(sync)s AND state = 'in_progress' AND attempt = %(attempt)s

-- name: keep_report
UPDATE trueup.switchover SET report = %(report)s::jsonb, phase = %(phase)s, attempt = NULL, changed_at = clock_timestamp()
 WHERE sync = %(sync)s

-- name: remove
DROP FUNCTION IF EXISTS trueup.switchover_enter(text);
DROP FUNCTION IF EXISTS trueup.switchover_open(text, text);
DROP FUNCTION IF EXISTS trueup.switchover_guard();
DROP TABLE IF EXISTS trueup.switchover;
DROP SEQUENCE IF EXISTS trueup.switchover_epoch;

-- name: schema_is_empty
SELECT to_regnamespace('trueup') IS NOT NULL
   AND NOT EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace('trueup'))
   AND NOT EXISTS (SELECT FROM pg_proc WHERE pronamespace = to_regnamespace('trueup'))

-- name: relations
-- A table and all its partitions (which can be written to directly), and whether their guard is enabled.
SELECT n.nspname::text, c.relname::text, coalesce(g.tgenabled::text, '')
  FROM (SELECT to_regclass(format('%%I.%%I', %(schema)s::text, %(table)s::text)) AS root) r,
       LATERAL (SELECT r.root AS relid UNION SELECT t.relid FROM pg_partition_tree(r.root) t) p
  JOIN pg_class c ON c.oid = p.relid JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_trigger g ON g.tgrelid = c.oid AND g.tgname = 'trueup_guard'
 WHERE c.relkind IN ('r', 'p')
 ORDER BY 1, 2

-- name: guarded
-- All tables and partitions with a guard.
SELECT n.nspname::text, c.relname::text
  FROM pg_trigger g JOIN pg_class c ON c.oid = g.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE g.tgname = 'trueup_guard' AND NOT g.tgisinternal ORDER BY 1, 2
