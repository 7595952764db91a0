-- name: holders
-- The sessions that block a session; a prepared transaction has the process 0. The lock manager is asked only while
-- the session waits.
SELECT b.pid, coalesce(a.usename::text, ''), coalesce(nullif(a.application_name, ''), a.backend_type, ''),
       extract(epoch FROM clock_timestamp() - a.xact_start)::float8, coalesce(a.state, '')
  FROM (SELECT w.pid FROM pg_stat_activity w WHERE w.pid = %(pid)s AND w.wait_event_type = 'Lock' OFFSET 0) w
 CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) b(pid)
  LEFT JOIN pg_stat_activity a ON a.pid = b.pid
 ORDER BY a.xact_start NULLS FIRST, b.pid
