-- name: session
-- The process of the server session, and its age in seconds. All names are qualified: search_path is not fixed yet.
SELECT a.pid,
       EXTRACT(epoch FROM pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) a.backend_start)::pg_catalog.float8
  FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()) a

-- name: last_statement
-- No rows: the server session has ended.
SELECT a.query FROM pg_catalog.pg_stat_get_activity(%(pid)s) a
