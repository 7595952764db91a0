-- name: due
SELECT source, key, op, first_lsn, last_lsn, xid, committed_at, first_failed_at, suspect_lsn, suspect_at, checks, is_hot,
       samples
  FROM trueup.validation_pending
 WHERE validation = %(name)s AND due_at <= %(now)s
   AND (coalesce(suspect_lsn, 0) <= %(position)s
        -- The first check after the delay, whose mark decides: it need not wait until the changes are read.
        OR (suspect_lsn <= %(applied)s AND first_failed_at <= %(late)s AND suspect_at - first_failed_at < %(delay)s))
 ORDER BY due_at
 LIMIT %(limit)s

-- name: known
SELECT p.source, p.key, p.op, p.first_lsn, p.last_lsn, p.xid, p.committed_at, p.first_failed_at, p.suspect_lsn, p.suspect_at,
       p.checks, p.is_hot, p.samples
  FROM (SELECT e ->> 0 AS source, e ->> 1 AS key FROM json_array_elements(%(places)s::json) e) k
  JOIN trueup.validation_pending p
    ON p.validation = %(name)s AND p.source = k.source AND md5(p.key) = md5(k.key)

-- name: put
INSERT INTO trueup.validation_pending (validation, source, key, op, first_lsn, last_lsn, xid, committed_at, first_failed_at,
       suspect_lsn, suspect_at, checks, is_hot, samples, due_at)
SELECT %(name)s, e.*, %(due_at)s
  FROM jsonb_to_recordset(%(lines)s) e(source text, key text, op text, first_lsn bigint, last_lsn bigint, xid bigint,
       committed_at timestamptz, first_failed_at timestamptz, suspect_lsn bigint, suspect_at timestamptz, checks integer,
       is_hot boolean, samples jsonb)
ON CONFLICT (validation, source, md5(key)) DO UPDATE SET
    op = excluded.op, first_lsn = excluded.first_lsn, last_lsn = excluded.last_lsn,
    xid = excluded.xid, committed_at = excluded.committed_at, first_failed_at = excluded.first_failed_at,
    suspect_lsn = excluded.suspect_lsn, suspect_at = excluded.suspect_at, checks = excluded.checks,
    is_hot = excluded.is_hot, samples = excluded.samples, due_at = excluded.due_at

-- name: rebase
-- After a gap: positions from before it mean nothing, the keys still have to be proven.
UPDATE trueup.validation_pending SET first_lsn = %(position)s, last_lsn = %(position)s, xid = 0, first_failed_at = NULL,
       suspect_lsn = NULL, suspect_at = NULL, samples = '[]'
 WHERE validation = %(name)s

-- name: drop
DELETE FROM trueup.validation_pending p
 USING (SELECT e ->> 0 AS source, e ->> 1 AS key FROM json_array_elements(%(places)s::json) e) k
 WHERE p.validation = %(name)s AND p.source = k.source AND md5(p.key) = md5(k.key)

-- name: drop_table
DELETE FROM trueup.validation_pending WHERE validation = %(name)s AND source = %(source)s

-- name: count
SELECT count(*) FROM trueup.validation_pending WHERE validation = %(name)s

-- name: add_error
INSERT INTO trueup.validation_error (validation, source, target, key, kind, columns, source_row, target_row, op, lsn,
       first_at, last_at)
SELECT %(name)s, w.source, w.target, w.key, w.kind, w.columns, w.source_row, w.target_row, w.op, w.lsn, w.first_at, %(now)s
  FROM jsonb_to_recordset(%(lines)s) w(source text, target text, key text, kind text, columns text[], source_row jsonb,
       target_row jsonb, op text, lsn bigint, first_at timestamptz)
ON CONFLICT (validation, source, md5(key)) WHERE state <> 'resolved' DO UPDATE SET
    kind = excluded.kind, columns = excluded.columns, source_row = excluded.source_row, target_row = excluded.target_row,
    op = excluded.op, lsn = excluded.lsn, last_at = excluded.last_at

-- name: resolve_keys
UPDATE trueup.validation_error e SET state = 'resolved', resolved_at = %(now)s, resolved_by = 'the row became equal'
  FROM (SELECT e ->> 0 AS source, e ->> 1 AS key FROM json_array_elements(%(places)s::json) e) k
 WHERE e.validation = %(name)s AND e.source = k.source AND md5(e.key) = md5(k.key) AND e.state <> 'resolved'

-- name: known_errors
SELECT e.key FROM (SELECT e ->> 0 AS source, e ->> 1 AS key FROM json_array_elements(%(places)s::json) e) k
  JOIN trueup.validation_error e
    ON e.validation = %(name)s AND e.source = k.source AND md5(e.key) = md5(k.key) AND e.state <> 'resolved'

-- name: resolve_table
UPDATE trueup.validation_error SET state = 'resolved', resolved_at = now(),
    resolved_by = 'the key of the table was changed'
 WHERE validation = %(name)s AND source = %(source)s AND state <> 'resolved'

-- name: errors_to_check
SELECT source, key FROM trueup.validation_error
 WHERE validation = %(name)s AND state = %(state)s AND source = ANY (%(tables)s) AND last_at <= %(before)s
 ORDER BY last_at LIMIT %(limit)s

-- name: still
UPDATE trueup.validation_error e SET last_at = %(now)s, kind = w.kind, columns = w.columns, source_row = w.source_row,
    target_row = w.target_row
  FROM jsonb_to_recordset(%(lines)s) w(source text, key text, kind text, columns text[], source_row jsonb,
       target_row jsonb)
 WHERE e.validation = %(name)s AND e.source = w.source AND md5(e.key) = md5(w.key) AND e.state <> 'resolved'

-- name: open_count
SELECT count(*) FROM trueup.validation_error WHERE validation = %(name)s AND state <> 'resolved'

-- name: by_hand
SELECT count(*) FROM trueup.validation_error
 WHERE validation = %(name)s AND state = 'resolved' AND resolved_by = 'by hand'

-- name: list
SELECT id, source, target, key, kind, columns, source_row, target_row, op, lsn, state, first_at, last_at, resolved_at,
       resolved_by
  FROM trueup.validation_error
 WHERE validation = %(name)s AND (%(state)s = 'all' OR state = %(state)s)
 ORDER BY id
 LIMIT %(limit)s

-- name: count_errors
SELECT count(*) FROM trueup.validation_error
 WHERE validation = %(name)s AND (%(state)s = 'all' OR state = %(state)s)

-- name: mark
UPDATE trueup.validation_error SET state = %(state)s,
    resolved_at = CASE WHEN %(state)s = 'resolved' THEN now() END,
    resolved_by = CASE WHEN %(state)s = 'resolved' THEN 'by hand' END
 WHERE validation = %(name)s AND (%(ids)s::bigint[] IS NULL OR id = ANY (%(ids)s::bigint[])) AND state <> 'resolved'

-- name: clear
DELETE FROM trueup.validation_error
 WHERE validation = %(name)s AND (%(ids)s::bigint[] IS NULL OR id = ANY (%(ids)s::bigint[]))

-- name: wrong_tables
SELECT source, target, count(*) FROM trueup.validation_error WHERE validation = %(name)s AND state = 'new'
 GROUP BY source, target ORDER BY source, target

-- name: wrong_keys
-- With the values of the key columns in the stored row: NULL for a value that is too long to be stored, no array if a
-- column is missing.
SELECT e.key, CASE WHEN r.noted ?& %(columns)s::text[] THEN ARRAY(
           SELECT CASE WHEN jsonb_typeof(r.noted -> c.name) = 'object' THEN NULL ELSE r.noted ->> c.name END
             FROM unnest(%(columns)s::text[]) WITH ORDINALITY c(name, place) ORDER BY c.place) END AS noted
  FROM trueup.validation_error e, LATERAL (SELECT coalesce(e.source_row, e.target_row) AS noted) r
 WHERE e.validation = %(name)s AND e.source = %(source)s AND e.state = 'new' ORDER BY e.id

-- name: suspects
-- Rows that a scrub, or a change on the target, made pending, and that differed when they were checked.
SELECT source, count(*) FROM trueup.validation_pending
 WHERE validation = %(name)s AND (op = 'truncate' OR (op IN ('scrub', 'target') AND checks > 0)) GROUP BY source

-- name: undecided
-- Rows of a table that a scrub or a change on the target found to differ, and changes before a position.
SELECT count(*) FROM trueup.validation_pending
 WHERE validation = %(name)s AND source = %(source)s
   AND (op IN ('truncate', 'scrub', 'target') OR first_lsn <= %(position)s)

-- name: tables_of_errors
SELECT DISTINCT source FROM trueup.validation_error
 WHERE validation = %(name)s AND (%(ids)s::bigint[] IS NULL OR id = ANY (%(ids)s::bigint[])) AND state <> 'resolved'
