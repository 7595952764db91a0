-- name: locks
-- The sessions that hold trueup's locks or wait for them.
SELECT 'applications' AS lock, l.mode = 'ExclusiveLock' AS exclusive,
       l.granted, l.pid, coalesce(a.usename::text, '') AS role, coalesce(a.application_name, '') AS application,
       extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds
  FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'relation' AND l.relation = to_regclass('trueup.switchover_lock') AND l.mode <> 'AccessShareLock'
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
 ORDER BY l.granted DESC, a.xact_start, l.pid

-- name: running
-- The session that executes, resets or finishes the switchover.
SELECT 'switchover' AS lock, true AS exclusive, true AS granted, a.pid, coalesce(a.usename::text, '') AS role,
       coalesce(a.application_name, '') AS application, extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds
  FROM trueup.switchover s JOIN pg_stat_activity a ON a.pid = s.holder AND coalesce(a.backend_start = s.holder_since, true)
 WHERE s.sync = %(sync)s

-- name: closed_by
-- Other switchovers that moved tables of this one away from this database, such as the next step of a chain.
SELECT o.sync, o.next_name FROM trueup.switchover o LEFT JOIN trueup.switchover s ON s.sync = %(sync)s
 WHERE o.sync <> %(sync)s AND o.state = 'use_next' AND (s.sync IS NULL OR o.guarded && s.guarded) ORDER BY 1

-- name: has_log
SELECT to_regclass('trueup_log.holders') IS NOT NULL

-- name: sync
-- The session that runs the sync from this database.
SELECT 'sync' AS lock, true AS exclusive, true AS granted, a.pid, coalesce(a.usename::text, '') AS role,
       coalesce(a.application_name, '') AS application, extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds
  FROM trueup_log.holders h JOIN pg_stat_activity a ON a.pid = h.pid AND coalesce(a.backend_start = h.since, true)
 WHERE h.tube = %(sync)s

-- name: undecided
-- End an attempt whose process is gone.
UPDATE trueup.switchover SET state = 'idle', attempt = NULL, phase = 'aborted', changed_at = clock_timestamp()
 WHERE sync = %(sync)s AND state = 'in_progress'

-- name: added
-- Tables of a closed database that have no guard per statement, and whether they have none per row: partitions that were
-- added later, and tables that were created again.
SELECT DISTINCT n.nspname::text, c.relname::text, NOT EXISTS (
           SELECT FROM pg_trigger g WHERE g.tgrelid = c.oid AND g.tgname = %(rows)s AND g.tgenabled = 'A'
              AND g.tgfoid = to_regprocedure('trueup.switchover_guard()'))
  FROM trueup.switchover s,
       LATERAL (SELECT unnest(s.guarded) UNION SELECT to_regclass(x)::oid FROM unnest(%(tables)s::text[]) x) o (id),
       LATERAL (SELECT o.id AS relid UNION SELECT p.relid FROM pg_partition_tree(o.id) p) t
  JOIN pg_class c ON c.oid = t.relid AND c.relkind IN ('r', 'p') JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE s.sync = %(sync)s AND s.state = 'use_next'
   AND NOT EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = c.oid AND g.tgname = %(trigger)s AND g.tgenabled = 'A'
                      AND g.tgfoid = to_regprocedure('trueup.switchover_guard()'))
 ORDER BY 1, 2
