-- name: make

CREATE TABLE IF NOT EXISTS trueup.validation (
    name text PRIMARY KEY,
    settings jsonb NOT NULL,
    -- The name of the slot or of the change log, see owner.py; with a tube, of its reader.
    slot text NOT NULL,
    publication text NOT NULL,
    owns_publication boolean NOT NULL,
    state text NOT NULL DEFAULT 'stopped',
    reason text NOT NULL DEFAULT '',
    wanted text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    heard_at timestamptz,
    -- Positions: where the validation began, up to where changes are read, and before which all are proven or errors.
    began bigint,
    position bigint,
    validated bigint,
    validated_at timestamptz,
    syncer bigint,
    upstream bigint,
    lag_seconds double precision,
    retained bigint,
    -- With triggers: the pods of the last checkpoint, which may not be deleted yet.
    pods bigint[] NOT NULL DEFAULT '{}',
    has_reached boolean NOT NULL DEFAULT false,
    -- Changes that were not seen, because the slot was lost: {from, to, why, at}.
    gap jsonb,
    -- The session of the process that runs the validation; it is not running any more if no such session exists. Not an
    -- advisory lock, which every role can take.
    holder integer,
    holder_since timestamptz
);
ALTER TABLE trueup.validation ADD COLUMN IF NOT EXISTS holder integer, ADD COLUMN IF NOT EXISTS holder_since timestamptz;
CREATE TABLE IF NOT EXISTS trueup.validation_table (
    validation text NOT NULL REFERENCES trueup.validation ON DELETE CASCADE,
    source text NOT NULL,
    target text NOT NULL,
    stage text NOT NULL,
    reason text NOT NULL DEFAULT '',
    remarks text[] NOT NULL DEFAULT '{}',
    inserts bigint NOT NULL DEFAULT 0,
    updates bigint NOT NULL DEFAULT 0,
    deletes bigint NOT NULL DEFAULT 0,
    truncates bigint NOT NULL DEFAULT 0,
    -- Changes that were not checked: of a stopped table, or missed by the capture.
    unchecked bigint NOT NULL DEFAULT 0,
    scrub_rows bigint NOT NULL DEFAULT 0,
    scrub_passes bigint NOT NULL DEFAULT 0,
    scrub_began_at timestamptz,
    scrubbed_at timestamptz,
    PRIMARY KEY (validation, source)
);
-- Names of an earlier version.
DO $$ DECLARE renamed record; BEGIN
    FOR renamed IN SELECT attname, replace(replace(attname, 'swept', 'scrubbed'), 'sweep', 'scrub') AS after
                     FROM pg_attribute WHERE attrelid = 'trueup.validation_table'::regclass AND attname ~ '^(sweep|swept)_'
    LOOP
        EXECUTE format('ALTER TABLE trueup.validation_table RENAME COLUMN %I TO %I', renamed.attname, renamed.after);
    END LOOP;
END $$;
-- Source and target at the last check: system identifier and database, timeline, position. Log only: a message in the log of the
-- source and a position behind it. Triggers only: the last round, see capture/triggers/readers.py.
ALTER TABLE trueup.validation ADD COLUMN IF NOT EXISTS servers jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN IF NOT EXISTS token text NOT NULL DEFAULT '', ADD COLUMN IF NOT EXISTS token_end bigint,
    ADD COLUMN IF NOT EXISTS round bigint NOT NULL DEFAULT 0;
-- With triggers: a text that changes after each interruption of the capture.
ALTER TABLE trueup.validation_table ADD COLUMN IF NOT EXISTS capture text;
-- What identifies the table on both nodes and the capture of its changes (see look.py), and why changes were missed.
ALTER TABLE trueup.validation_table ADD COLUMN IF NOT EXISTS identity jsonb;
ALTER TABLE trueup.validation_table ADD COLUMN IF NOT EXISTS missed text NOT NULL DEFAULT '';
-- Requests of `add`, `remove` and `restart`: the number of the last one, and the one that the process has applied.
ALTER TABLE trueup.validation ADD COLUMN IF NOT EXISTS requests bigint NOT NULL DEFAULT 0;
ALTER TABLE trueup.validation ADD COLUMN IF NOT EXISTS requests_applied bigint NOT NULL DEFAULT 0;
-- The request for a table (restart, remove), and whether it is scrubbed once, also without --scrub-share.
ALTER TABLE trueup.validation_table ADD COLUMN IF NOT EXISTS requested text NOT NULL DEFAULT '';
ALTER TABLE trueup.validation_table ADD COLUMN IF NOT EXISTS scrub_once boolean NOT NULL DEFAULT false;
-- With both sides: the position in the log of the target, the mark there, and counts; per table what its publication is.
ALTER TABLE trueup.validation ADD COLUMN IF NOT EXISTS target_position bigint,
    ADD COLUMN IF NOT EXISTS target_token text NOT NULL DEFAULT '', ADD COLUMN IF NOT EXISTS target_token_end bigint,
    ADD COLUMN IF NOT EXISTS target_others bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS target_applied bigint NOT NULL DEFAULT 0, ADD COLUMN IF NOT EXISTS target_at timestamptz;
ALTER TABLE trueup.validation_table ADD COLUMN IF NOT EXISTS target_capture text,
    ADD COLUMN IF NOT EXISTS target_problem text NOT NULL DEFAULT '';
-- With triggers on the target: the pods of the last checkpoint, and the number of the last round.
ALTER TABLE trueup.validation ADD COLUMN IF NOT EXISTS target_pods bigint[] NOT NULL DEFAULT '{}',
    ADD COLUMN IF NOT EXISTS target_round bigint NOT NULL DEFAULT 0;
-- All blocks are hashed again after this time, also if they are not old.
ALTER TABLE trueup.validation ADD COLUMN IF NOT EXISTS scrub_wanted timestamptz;
-- The number of the last watch, and of the last one that the process knows: see proving/record.py. What the rows of a
-- table are compared by: columns, key, filter.
ALTER TABLE trueup.validation ADD COLUMN IF NOT EXISTS watch bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS watch_known bigint NOT NULL DEFAULT 0;
ALTER TABLE trueup.validation_table ADD COLUMN IF NOT EXISTS rules jsonb;
-- The number of events after which nothing that was compared before counts, also if there was no certificate to void.
ALTER TABLE trueup.validation_table ADD COLUMN IF NOT EXISTS voids bigint NOT NULL DEFAULT 0;
-- What runs the validation, and with Spark its progress.
ALTER TABLE trueup.validation ADD COLUMN IF NOT EXISTS engine jsonb NOT NULL DEFAULT '{}';
CREATE TABLE IF NOT EXISTS trueup.validation_pending (
    validation text NOT NULL REFERENCES trueup.validation ON DELETE CASCADE,
    source text NOT NULL,
    key text NOT NULL,
    op text NOT NULL,
    first_lsn bigint NOT NULL,
    last_lsn bigint NOT NULL,
    xid bigint NOT NULL,
    committed_at timestamptz,
    first_failed_at timestamptz,
    suspect_lsn bigint,
    suspect_at timestamptz,
    checks integer NOT NULL,
    is_hot boolean NOT NULL,
    samples jsonb NOT NULL,
    due_at timestamptz NOT NULL
);
-- Indexed by md5, because a key may be too long for an index.
CREATE UNIQUE INDEX IF NOT EXISTS validation_pending_key ON trueup.validation_pending (validation, source, md5(key));
CREATE INDEX IF NOT EXISTS validation_pending_due ON trueup.validation_pending (validation, due_at);
CREATE INDEX IF NOT EXISTS validation_pending_first ON trueup.validation_pending (validation, first_lsn);
CREATE TABLE IF NOT EXISTS trueup.validation_error (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    validation text NOT NULL REFERENCES trueup.validation ON DELETE CASCADE,
    source text NOT NULL,
    target text NOT NULL,
    key text NOT NULL,
    kind text NOT NULL,
    columns text[] NOT NULL,
    source_row jsonb,
    target_row jsonb,
    op text NOT NULL,
    lsn bigint NOT NULL,
    state text NOT NULL DEFAULT 'new',
    first_at timestamptz NOT NULL,
    last_at timestamptz NOT NULL,
    resolved_at timestamptz,
    resolved_by text
);
CREATE UNIQUE INDEX IF NOT EXISTS validation_error_open ON trueup.validation_error (validation, source, md5(key))
    WHERE state <> 'resolved'

-- name: is_made
-- The last objects that `make` creates; if they exist, all objects exist.
SELECT EXISTS (SELECT FROM pg_attribute
                WHERE attrelid = to_regclass('trueup.validation_table') AND attname = 'scrub_once')
   AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('trueup.validation') AND attname = 'scrub_wanted')
   AND EXISTS (SELECT FROM pg_attribute
                WHERE attrelid = to_regclass('trueup.validation_table') AND attname = 'target_problem')
   AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('trueup.validation') AND attname = 'round')
   AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('trueup.validation') AND attname = 'target_round')
   AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('trueup.validation') AND attname = 'holder')
   AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('trueup.validation') AND attname = 'engine')
   AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('trueup.validation_table') AND attname = 'rules')
   AND to_regclass('trueup.validation_error_open') IS NOT NULL

-- name: engine
UPDATE trueup.validation SET engine = %(engine)s WHERE name = %(name)s

-- name: exists
SELECT to_regclass('trueup.validation') IS NOT NULL

-- name: lock
-- Other roles may not see when a session began: then the process is enough.
UPDATE trueup.validation v
   SET holder = pg_backend_pid(),
       holder_since = (SELECT a.backend_start FROM pg_stat_activity a WHERE a.pid = pg_backend_pid())
 WHERE v.name = %(name)s
   AND NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = v.holder AND a.pid <> pg_backend_pid()
                      AND coalesce(a.backend_start = v.holder_since, true))

-- name: is_running
-- Whether a session holds the lock.
SELECT EXISTS (
    SELECT FROM trueup.validation v
      JOIN pg_stat_activity a ON a.pid = v.holder AND coalesce(a.backend_start = v.holder_since, true)
     WHERE v.name = %(name)s)

-- name: create
INSERT INTO trueup.validation (name, settings, slot, publication, owns_publication)
VALUES (%(name)s, %(settings)s, %(slot)s, %(publication)s, %(owns)s)

-- name: get
SELECT name, settings, slot, publication, owns_publication, state, reason, wanted, created_at, started_at, heard_at, began,
       position, validated, validated_at, syncer, upstream, lag_seconds, retained, has_reached, gap,
       servers, token, token_end, round, requests, requests_applied, engine, target_position, target_token,
       target_token_end, target_others, target_applied, target_at, target_round, watch, watch_known
  FROM trueup.validation WHERE name = %(name)s

-- name: names
SELECT name FROM trueup.validation ORDER BY name

-- name: tables
SELECT * FROM trueup.validation_table WHERE validation = %(name)s ORDER BY source

-- name: put_table
-- Earlier changes of a table that is added after the start of the validation were not seen.
INSERT INTO trueup.validation_table (validation, source, target, stage, reason, remarks, rules, unchecked)
SELECT %(name)s, %(source)s, %(target)s, %(stage)s, %(reason)s, %(remarks)s, %(rules)s, (v.position IS NOT NULL)::int
  FROM trueup.validation v WHERE v.name = %(name)s
ON CONFLICT (validation, source) DO UPDATE SET
    target = excluded.target, stage = excluded.stage, reason = excluded.reason, remarks = excluded.remarks,
    rules = excluded.rules,
    -- Changes while the table was stopped were not checked, and perhaps not read.
    unchecked = CASE WHEN validation_table.stage = 'stopped' AND excluded.stage = 'running'
                     THEN greatest(validation_table.unchecked, 1) ELSE validation_table.unchecked END,
    -- A scrub that is interrupted by a stop is not complete.
    scrub_began_at = CASE WHEN excluded.stage = 'stopped' THEN NULL ELSE validation_table.scrub_began_at END

-- name: count_table
UPDATE trueup.validation_table SET
    inserts = inserts + %(insert)s, updates = updates + %(update)s, deletes = deletes + %(delete)s,
    truncates = truncates + %(truncate)s, unchecked = unchecked + %(unchecked)s,
    -- A scrub in progress may already have passed the rows of an unchecked change.
    scrub_began_at = CASE WHEN %(unchecked)s > 0 THEN NULL ELSE scrub_began_at END
 WHERE validation = %(name)s AND source = %(source)s

-- name: capture
-- The capture was interrupted: changes during the interruption were not seen.
UPDATE trueup.validation_table SET
    capture = %(capture)s,
    unchecked = CASE WHEN capture IS NOT NULL THEN greatest(unchecked, 1) ELSE unchecked END,
    scrub_began_at = NULL
 WHERE validation = %(name)s AND source = %(source)s AND capture IS DISTINCT FROM %(capture)s
RETURNING source

-- name: identity
-- If changes were missed, a scrub in progress may already have passed their rows.
UPDATE trueup.validation_table SET identity = %(identity)s,
    missed = CASE WHEN %(missed)s <> '' THEN %(missed)s ELSE missed END,
    unchecked = CASE WHEN %(missed)s <> '' THEN greatest(unchecked, 1) ELSE unchecked END,
    scrub_began_at = CASE WHEN %(missed)s <> '' THEN NULL ELSE scrub_began_at END
 WHERE validation = %(name)s AND source = %(source)s

-- name: missed
-- All tables need a scrub; one in progress may already have passed rows.
UPDATE trueup.validation_table SET missed = %(missed)s, unchecked = greatest(unchecked, 1), voids = voids + 1,
    scrub_began_at = NULL
 WHERE validation = %(name)s

-- name: restart_pass
-- A scrub in progress may already have passed rows whose changes were not seen.
UPDATE trueup.validation_table SET scrub_began_at = NULL, voids = voids + 1
 WHERE validation = %(name)s AND (%(source)s::text IS NULL OR source = %(source)s)

-- name: clock
SELECT clock_timestamp()

-- name: scrub
UPDATE trueup.validation_table SET
    scrub_rows = scrub_rows + %(rows)s, scrub_passes = scrub_passes + %(passes)s,
    scrubbed_at = CASE WHEN %(passes)s > 0 THEN coalesce(scrub_began_at, %(now)s) ELSE scrubbed_at END,
    unchecked = CASE WHEN %(passes)s > 0 THEN 0 ELSE unchecked END,
    missed = CASE WHEN %(passes)s > 0 THEN '' ELSE missed END,
    scrub_once = scrub_once AND %(passes)s = 0,
    scrub_began_at = CASE WHEN %(passes)s > 0 THEN NULL ELSE coalesce(scrub_began_at, %(now)s) END
 WHERE validation = %(name)s AND source = %(source)s

-- name: certified
-- A run of diff or check has compared all rows of the table after this time.
UPDATE trueup.validation_table SET scrubbed_at = greatest(scrubbed_at, %(now)s), unchecked = 0, missed = '',
    scrub_once = false
 WHERE validation = %(name)s AND source = %(source)s

-- name: certified_blocks
-- Blocks that were hashed later are left as they are.
UPDATE trueup.certificate_block b SET rows = coalesce(e.rows, b.rows), hash_sum = coalesce(e.hash_sum, b.hash_sum),
       seed = CASE WHEN e.rows IS NULL THEN b.seed ELSE %(seed)s END,
       hashed_at = %(now)s, source_lsn = %(source_lsn)s, target_lsn = %(target_lsn)s,
       is_touched = e.rows IS NULL OR b.touched_in >= %(watch)s OR NOT %(is_exact)s
  FROM trueup.certificate_block o
  LEFT JOIN jsonb_to_recordset(%(lines)s) e(id bigint, rows bigint, hash_sum numeric) ON e.id = o.id
 WHERE o.id = b.id AND b.validation = %(name)s AND b.source = %(source)s
   AND (b.hashed_at IS NULL OR b.hashed_at < %(now)s)

-- name: begin_watch
UPDATE trueup.validation SET watch = watch + 1 WHERE name = %(name)s RETURNING watch

-- name: watch_known
UPDATE trueup.validation SET watch_known = %(watch)s WHERE name = %(name)s

-- name: scrub_candidates
-- Per table: its oldest block, the start of the pass in progress, and whether all its blocks must be hashed now.
SELECT t.source, t.scrub_began_at, clock_timestamp() AS now,
       t.unchecked > 0 OR t.scrub_once OR c.source IS NULL OR c.void_at IS NOT NULL OR t.scrubbed_at IS NULL
       OR coalesce(t.scrubbed_at <= greatest(v.scrub_wanted, (v.gap ->> 'at')::timestamptz), false) AS is_needed, b.*
  FROM trueup.validation v
  JOIN trueup.validation_table t ON t.validation = v.name
  LEFT JOIN trueup.certificate c ON c.validation = t.validation AND c.source = t.source
  LEFT JOIN LATERAL (
       SELECT id, start_key, end_key, rows, hash_sum, seed, hashed_at, source_lsn, target_lsn, is_touched,
              touched_in
         FROM trueup.certificate_block WHERE validation = t.validation AND source = t.source
        ORDER BY hashed_at NULLS FIRST, id LIMIT 1) b ON true
 WHERE v.name = %(name)s AND t.source = ANY (%(sources)s)

-- name: want_scrub
UPDATE trueup.validation SET scrub_wanted = greatest(scrub_wanted, %(since)s) WHERE name = %(name)s

-- name: progress
UPDATE trueup.validation SET
    position = %(position)s, syncer = %(syncer)s, upstream = %(upstream)s, lag_seconds = %(lag)s,
    retained = %(retained)s, has_reached = %(reached)s, heard_at = now(),
    validated = greatest(validated, least(%(position)s, (
        SELECT min(first_lsn) FROM trueup.validation_pending WHERE validation = %(name)s))),
    validated_at = now()
 WHERE name = %(name)s

-- name: state
UPDATE trueup.validation SET state = %(state)s, reason = %(reason)s, heard_at = now(),
    started_at = CASE WHEN %(state)s = 'running' THEN now() ELSE started_at END
 WHERE name = %(name)s

-- name: want
UPDATE trueup.validation SET wanted = %(wanted)s WHERE name = %(name)s

-- name: settings
UPDATE trueup.validation SET settings = %(settings)s WHERE name = %(name)s

-- name: begin_at
-- Positions from before it may be of a history that does not exist any more: nothing is validated before this one.
UPDATE trueup.validation SET began = coalesce(began, %(position)s), position = %(position)s, validated = %(position)s,
    syncer = NULL, upstream = NULL, gap = %(gap)s, pods = '{}', token = '', token_end = NULL, round = 0
 WHERE name = %(name)s

-- name: take_names
UPDATE trueup.validation SET slot = %(slot)s, publication = %(publication)s WHERE name = %(name)s

-- name: put_servers
UPDATE trueup.validation SET servers = %(servers)s WHERE name = %(name)s

-- name: put_token
UPDATE trueup.validation SET token = %(token)s, token_end = %(end)s WHERE name = %(name)s

-- name: put_target_token
UPDATE trueup.validation SET target_token = %(token)s, target_token_end = %(end)s WHERE name = %(name)s

-- name: target_begin
UPDATE trueup.validation SET target_position = %(position)s, target_token = '', target_token_end = NULL,
    target_pods = '{}', target_round = 0
 WHERE name = %(name)s

-- name: target_progress
UPDATE trueup.validation SET target_position = %(position)s, target_others = target_others + %(others)s,
    target_applied = target_applied + %(applied)s, target_at = now()
 WHERE name = %(name)s

-- name: target_capture
UPDATE trueup.validation_table SET target_capture = %(capture)s, target_problem = %(problem)s
 WHERE validation = %(name)s AND source = %(source)s

-- name: pods
SELECT pods FROM trueup.validation WHERE name = %(name)s

-- name: target_pods
SELECT target_pods FROM trueup.validation WHERE name = %(name)s

-- name: put_target_pods
UPDATE trueup.validation SET target_pods = %(pods)s, target_token = %(token)s, target_round = %(round)s WHERE name = %(name)s

-- name: put_pods
UPDATE trueup.validation SET pods = %(pods)s, token = %(token)s, round = %(round)s WHERE name = %(name)s

-- name: gap
UPDATE trueup.validation SET gap = %(gap)s WHERE name = %(name)s

-- name: gap_closed
-- Closes the gap if every table was scrubbed completely by a pass that began after the gap was stored.
UPDATE trueup.validation v SET gap = NULL
 WHERE name = %(name)s AND gap IS NOT NULL AND gap ? 'to'
   AND NOT EXISTS (SELECT FROM trueup.validation_table t WHERE t.validation = v.name
                      AND (t.scrubbed_at IS NULL OR t.scrubbed_at <= (v.gap ->> 'at')::timestamptz))

-- name: delete
DELETE FROM trueup.validation WHERE name = %(name)s

-- name: lock_row
-- A starting process writes the row before it takes its lock: whether the process runs does not change meanwhile.
SELECT FROM trueup.validation WHERE name = %(name)s FOR UPDATE

-- name: request
UPDATE trueup.validation SET settings = %(settings)s, requests = requests + 1 WHERE name = %(name)s RETURNING requests

-- name: request_applied
UPDATE trueup.validation SET requests_applied = %(number)s WHERE name = %(name)s

-- name: add_table
INSERT INTO trueup.validation_table (validation, source, target, stage, reason, unchecked, scrub_once)
VALUES (%(name)s, %(source)s, %(target)s, 'stopped', 'it was added and is not validated yet', 1, true)
ON CONFLICT (validation, source) DO UPDATE SET unchecked = 1, requested = 'restart'

-- name: request_tables
UPDATE trueup.validation_table SET requested = %(requested)s WHERE validation = %(name)s AND source = ANY (%(sources)s)

-- name: forget_pending
DELETE FROM trueup.validation_pending p USING trueup.validation_table t
 WHERE t.validation = %(name)s AND t.requested <> '' AND p.validation = t.validation AND p.source = t.source

-- name: forget_errors
DELETE FROM trueup.validation_error e USING trueup.validation_table t
 WHERE t.validation = %(name)s AND t.requested <> '' AND e.validation = t.validation AND e.source = t.source

-- name: remove_tables
DELETE FROM trueup.validation_table WHERE validation = %(name)s AND requested = 'remove'

-- name: restart_tables
-- Nothing that was compared before counts: the table is unchecked until a complete scrub.
UPDATE trueup.validation_table SET inserts = 0, updates = 0, deletes = 0, truncates = 0, unchecked = 1,
    scrub_rows = 0, scrub_passes = 0, scrub_began_at = NULL, scrubbed_at = NULL, identity = NULL, missed = '', requested = '',
    scrub_once = true, voids = voids + 1
 WHERE validation = %(name)s AND requested = 'restart'

-- name: drop_tables
DROP TABLE trueup.validation_error, trueup.validation_pending, trueup.validation_table, trueup.validation

-- name: counts
SELECT source, sum(pending)::int8 AS pending, sum(failed)::int8 AS failed, sum(hot)::int8 AS hot,
       jsonb_object_agg(op, pending) AS by_operation
  FROM (SELECT source, op, count(*) AS pending, count(*) FILTER (WHERE checks > 0) AS failed,
               count(*) FILTER (WHERE is_hot) AS hot
          FROM trueup.validation_pending WHERE validation = %(name)s GROUP BY source, op) p
 GROUP BY source

-- name: error_counts
SELECT source, state, kind, count(*) FROM trueup.validation_error WHERE validation = %(name)s GROUP BY 1, 2, 3

-- name: oldest
SELECT source, key, op, first_lsn, checks, is_hot FROM trueup.validation_pending
 WHERE validation = %(name)s ORDER BY first_lsn LIMIT %(limit)s
