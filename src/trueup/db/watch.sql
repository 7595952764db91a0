-- name: load
-- One row: replication lag in seconds (NULL: not visible), active sessions of others (NULL: not visible), sessions of
-- others that wait for a lock.
SELECT
    CASE
        WHEN pg_is_in_recovery() THEN
            CASE
                WHEN pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn() THEN 0
                ELSE extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp())
            END
        WHEN (SELECT count(*) FROM pg_stat_replication) = 0 THEN 0
        WHEN (SELECT bool_or(state IS NULL) FROM pg_stat_replication) THEN NULL
        ELSE (
            -- A standby that no longer replies reports no lag: count the time since its last reply instead, minus the
            -- ten seconds between two replies.
            SELECT coalesce(max(extract(epoch FROM greatest(
                replay_lag,
                CASE
                    WHEN replay_lsn < pg_current_wal_lsn() THEN clock_timestamp() - reply_time - interval '10 s'
                END
            ))), 0)
            FROM pg_stat_replication
        )
    END::float8,
    (
        SELECT CASE WHEN count(state) = count(*) THEN count(*) FILTER (WHERE state = 'active') END
        FROM pg_stat_activity
        WHERE coalesce(backend_type = 'client backend', true) AND pid <> pg_backend_pid()
            AND application_name IS DISTINCT FROM %(application)s
    ),
    (
        SELECT count(DISTINCT l.pid)
        FROM pg_locks l
        LEFT JOIN pg_stat_activity a ON a.pid = l.pid
        WHERE NOT l.granted AND a.application_name IS DISTINCT FROM %(application)s
    )

-- name: waits
-- Active sessions of this run: seconds since their start, whether they wait for a lock, and the holder of the lock.
SELECT
    extract(epoch FROM clock_timestamp() - a.query_start)::float8,
    coalesce(a.wait_event_type = 'Lock', false),
    (
        SELECT string_agg(
            format('process %%s (%%s%%s)', b.pid, coalesce(b.usename, '?'),
                   coalesce(', ' || nullif(b.application_name, ''), '')), ', ' ORDER BY b.pid)
        FROM pg_stat_activity b
        WHERE b.pid = ANY (pg_blocking_pids(a.pid))
    )
FROM pg_stat_activity a
WHERE a.application_name = %(application)s AND a.state = 'active' AND a.pid <> pg_backend_pid()
ORDER BY 1 DESC
LIMIT 1
