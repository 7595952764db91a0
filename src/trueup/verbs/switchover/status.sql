-- name: locks
-- The sessions that hold trueup's locks or wait for them.
SELECT l.objid::int AS lock, l.mode = 'ExclusiveLock' AS exclusive, l.granted, l.pid, coalesce(a.usename::text, '') AS role,
       coalesce(a.application_name, '') AS application,
       extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds
  FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.classid = %(family)s
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
 ORDER BY l.objid, l.granted DESC, a.xact_start, l.pid

-- name: end
-- Terminate the sessions that execute a switchover here; the server rolls back what was not committed.
SELECT count(*) FROM (
    SELECT pg_terminate_backend(l.pid) FROM pg_locks l
     WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.classid = %(family)s AND l.objid = %(number)s AND l.granted
       AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
       AND l.pid IS NOT NULL AND l.pid <> pg_backend_pid()) ended

-- name: undecided
-- End an attempt whose process is gone.
UPDATE trueup.switchover SET state = 'idle', attempt = NULL, phase = 'aborted', changed_at = clock_timestamp()
 WHERE sync = %(sync)s AND state = 'in_progress'
