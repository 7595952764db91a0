-- name: server
-- The control file of a primary shows a new timeline only after the next checkpoint; the name of its log file at once.
SELECT (SELECT system_identifier::text FROM pg_control_system()) || '/' ||
           (SELECT oid FROM pg_database WHERE datname = current_database()),
       CASE WHEN pg_is_in_recovery()
            THEN (SELECT greatest(c.timeline_id, r.min_recovery_end_timeline)
                    FROM pg_control_checkpoint() c, pg_control_recovery() r)
            ELSE ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int END,
       CASE WHEN NOT pg_is_in_recovery() THEN (pg_current_wal_flush_lsn() - '0/0')::int8 END

-- name: without_control
SELECT '/' || (SELECT oid FROM pg_database WHERE datname = current_database()),
       CASE WHEN pg_is_in_recovery() THEN 0
            ELSE ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int END,
       CASE WHEN NOT pg_is_in_recovery() THEN (pg_current_wal_flush_lsn() - '0/0')::int8 END

-- name: table
SELECT current_database()::text,
       coalesce((SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                  WHERE n.nspname = %(schema)s AND c.relname = %(table)s), 0)::int8
