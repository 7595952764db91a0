-- name: make
CREATE SCHEMA IF NOT EXISTS trueup;
CREATE TABLE IF NOT EXISTS trueup.syncs (
    sync text PRIMARY KEY,
    source text NOT NULL,
    -- making: the schema is not there yet; copying: not all rows are; copied: indexes and constraints are not;
    -- running: rounds keep it up to date.
    phase text NOT NULL CHECK (phase IN ('making', 'copying', 'copied', 'running')),
    made_schema boolean NOT NULL,
    tables text[] NOT NULL,
    -- As asked for: nothing named means the whole database.
    named text[] NOT NULL,
    left_out text[] NOT NULL,
    -- How many snapshots the copy was read in: more than one where it was taken up again.
    snapshots integer NOT NULL DEFAULT 0,
    -- Whoever begins to write takes the next number; who has an older one, a task that outlived its driver, may not.
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
    stop_asked_at timestamptz
);
COMMENT ON TABLE trueup.syncs IS 'The syncs that fill this database, how far they are, and what the last round did.';
CREATE TABLE IF NOT EXISTS trueup.copied (
    sync text NOT NULL REFERENCES trueup.syncs ON DELETE CASCADE,
    relation oid NOT NULL,
    -- The file that the pages were read from: after a rewrite of the table, the numbers of pages mean nothing.
    file oid NOT NULL,
    first_page bigint NOT NULL,
    -- NULL: to the end of the file; what came behind it since was touched.
    end_page bigint,
    rows bigint NOT NULL,
    copied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (sync, relation, file, first_page)
);
COMMENT ON TABLE trueup.copied IS 'Page ranges of the source that are copied; written with their rows, in one transaction.';
CREATE TABLE IF NOT EXISTS trueup.sync_mark (
    sync text PRIMARY KEY,
    source_lsn pg_lsn,
    source_at timestamptz,
    applied_at timestamptz
);
COMMENT ON TABLE trueup.sync_mark IS
    'How far a sync is: all commits of the source before source_lsn are here. 0/0: a large round is at work.';

-- name: begin
INSERT INTO trueup.syncs (sync, source, phase, made_schema, tables, named, left_out)
VALUES (%(sync)s, %(source)s, CASE WHEN %(made)s THEN 'making' ELSE 'copying' END, %(made)s, %(tables)s, %(named)s,
        %(left_out)s)

-- name: read
SELECT s.sync, s.source, s.phase, s.made_schema, s.tables, s.named, s.left_out, s.snapshots, s.epoch, s.started_at, s.copied_at, s.rounds, s.keys,
       s.last_keys, s.last_ms, s.lag_seconds, s.pending_keys, s.keys_per_second, s.stop_asked_at,
       m.source_lsn::text AS source_lsn, m.source_at, m.applied_at
  FROM trueup.syncs s LEFT JOIN trueup.sync_mark m USING (sync) WHERE s.sync = %s

-- name: mark
INSERT INTO trueup.sync_mark (sync, source_lsn, source_at, applied_at)
VALUES (%(sync)s, %(lsn)s, %(at)s, clock_timestamp())
    ON CONFLICT (sync) DO UPDATE SET source_lsn = excluded.source_lsn, source_at = excluded.source_at,
                                     applied_at = excluded.applied_at

-- name: unmark
UPDATE trueup.sync_mark SET source_lsn = '0/0', applied_at = clock_timestamp() WHERE sync = %(sync)s

-- name: pass_all
UPDATE trueup.sync_mark
   SET source_lsn = greatest(source_lsn, %(position)s::pg_lsn), source_at = clock_timestamp(), applied_at = clock_timestamp()
 WHERE sync = %(sync)s

-- name: did
UPDATE trueup.syncs
   SET rounds = rounds + 1, keys = keys + %(keys)s, last_keys = %(keys)s, last_ms = %(ms)s, lag_seconds = %(lag)s,
       pending_keys = %(pending)s, keys_per_second = %(rate)s
 WHERE sync = %(sync)s RETURNING stop_asked_at IS NOT NULL

-- name: quiet
UPDATE trueup.syncs SET lag_seconds = 0, pending_keys = 0 WHERE sync = %(sync)s RETURNING stop_asked_at IS NOT NULL

-- name: another_snapshot
UPDATE trueup.syncs SET snapshots = snapshots + 1 WHERE sync = %s RETURNING snapshots

-- name: take_over
-- Waits for the transactions of those who wrote before; whoever of them comes later is refused.
UPDATE trueup.syncs SET epoch = epoch + 1, stop_asked_at = NULL WHERE sync = %s RETURNING epoch

-- name: still_ours
-- An error (division by zero) where somebody has taken over: in a pipeline, nothing behind it is done then.
SELECT 1 / (SELECT count(*) FROM (SELECT FROM trueup.syncs WHERE sync = %(sync)s AND epoch = %(epoch)s FOR SHARE) x)

-- name: copied
INSERT INTO trueup.copied (sync, relation, file, first_page, end_page, rows) VALUES (%s, %s, %s, %s, %s, 0)
    ON CONFLICT DO NOTHING RETURNING true
