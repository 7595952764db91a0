-- name: waits_for
-- Whether a writer that holds the shared lock waits for one of these sessions, directly or behind others.
WITH RECURSIVE waits AS (
    SELECT l.pid FROM pg_locks l
     WHERE l.locktype = 'relation' AND l.relation = to_regclass('trueup.switchover_lock') AND l.granted
       AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
       AND l.mode = 'RowShareLock' AND l.pid IS NOT NULL
    UNION
    SELECT b.pid FROM waits w, unnest(pg_blocking_pids(w.pid)) b(pid) WHERE b.pid <> 0)
SELECT EXISTS (SELECT FROM waits WHERE pid = ANY(%(pids)s))

-- name: exclusive
-- The sessions that hold or request a lock on one of these tables, or on a partition, that excludes readers.
WITH RECURSIVE tree AS (
    SELECT unnest(%(oids)s::oid[]) AS oid
    UNION ALL
    SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid)
SELECT DISTINCT l.pid, coalesce(a.usename::text, ''), coalesce(a.application_name, ''),
       extract(epoch FROM clock_timestamp() - a.xact_start)::float8, coalesce(a.state, '')
  FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'relation' AND l.relation IN (SELECT oid FROM tree) AND l.mode = 'AccessExclusiveLock'
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
 ORDER BY 1

-- name: room
-- The number of these tables with their partitions, and of the locks that the server has room for.
WITH RECURSIVE tree AS (
    SELECT unnest(%(oids)s::oid[]) AS oid
    UNION ALL
    SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid)
SELECT count(*), current_setting('max_locks_per_transaction')::bigint
                 * (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint)
  FROM tree
