-- name: of_table
-- The holders of locks on a table that keep triggers from being created; a prepared transaction has no
-- process, and its name as the state.
WITH held AS (
    SELECT DISTINCT l.pid, l.virtualtransaction FROM pg_locks l
     WHERE l.locktype = 'relation' AND l.granted AND l.mode NOT IN ('AccessShareLock', 'RowShareLock')
       AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
       AND l.relation = to_regclass(format('%%I.%%I', %(schema)s::text, %(table)s::text)) AND l.pid IS DISTINCT FROM pg_backend_pid()
)
SELECT h.pid, coalesce(a.usename::text, x.owner::text, ''), coalesce(a.application_name, ''),
       extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, x.prepared))::float8, coalesce(x.gid, a.state, '')
  FROM held h LEFT JOIN pg_stat_activity a ON a.pid = h.pid
  LEFT JOIN pg_locks t ON h.pid IS NULL AND t.locktype = 'transactionid' AND t.virtualtransaction = h.virtualtransaction AND t.pid IS NULL
  LEFT JOIN pg_prepared_xacts x ON x.transaction = t.transactionid
 ORDER BY 4 DESC NULLS LAST, 1

-- name: holders
-- The sessions that block a session; a prepared transaction has the process 0. The lock manager is asked only while
-- the session waits.
SELECT b.pid, coalesce(a.usename::text, ''), coalesce(nullif(a.application_name, ''), a.backend_type, ''),
       extract(epoch FROM clock_timestamp() - a.xact_start)::float8,
       coalesce(a.state, CASE b.pid WHEN 0 THEN (SELECT CASE WHEN count(*) > 1 THEN 'one of ' ELSE '' END || string_agg(x.gid, ', ')
                                                   FROM pg_prepared_xacts x WHERE x.database = current_database()) END, '')
  FROM (SELECT w.pid FROM pg_stat_activity w WHERE w.pid = %(pid)s AND w.wait_event_type = 'Lock' OFFSET 0) w
 CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) b(pid)
  LEFT JOIN pg_stat_activity a ON a.pid = b.pid
 ORDER BY a.xact_start NULLS FIRST, b.pid
