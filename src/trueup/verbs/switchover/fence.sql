-- name: blockers
-- The holders of the lock that writers share; a prepared transaction has no process. Readers of the table (pg_dump) do not block.
SELECT l.pid, coalesce(a.usename::text, ''), coalesce(a.application_name, ''),
       extract(epoch FROM clock_timestamp() - a.xact_start)::float8,
       coalesce(CASE WHEN l.pid IS NULL
                     THEN (SELECT x.gid FROM pg_locks t JOIN pg_prepared_xacts x ON x.transaction = t.transactionid
                            WHERE t.locktype = 'transactionid' AND t.virtualtransaction = l.virtualtransaction AND t.pid IS NULL)
                     ELSE a.state END, '')
  FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'relation' AND l.relation = to_regclass('trueup.switchover_lock') AND l.granted
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND l.mode <> 'AccessShareLock' AND l.pid IS DISTINCT FROM pg_backend_pid()
 ORDER BY a.xact_start NULLS FIRST, l.pid

-- name: waiting
-- The sessions that wait for the lock that writers share.
SELECT coalesce(a.usename::text, ''), coalesce(a.application_name, ''), count(*),
       max(extract(epoch FROM clock_timestamp() - coalesce(l.waitstart, clock_timestamp())) * 1000)::float8
  FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'relation' AND l.relation = to_regclass('trueup.switchover_lock') AND NOT l.granted
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
 GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2
