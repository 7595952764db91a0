-- name: slot
SELECT plugin::text, database::text, active_pid, restart_lsn - '0/0' AS restart, confirmed_flush_lsn - '0/0' AS confirmed,
       to_jsonb(s) ->> 'wal_status' = 'lost' OR to_jsonb(s) ->> 'invalidation_reason' IS NOT NULL AS is_lost,
       coalesce(pg_current_wal_lsn() - restart_lsn, 0)::int8 AS retained
  FROM pg_replication_slots s
 WHERE slot_name = %(slot)s

-- name: positions
-- Flushed, inserted, and the server's clock.
SELECT (pg_current_wal_flush_lsn() - '0/0')::int8, (pg_current_wal_insert_lsn() - '0/0')::int8, clock_timestamp()

-- name: peek
COPY (
    SELECT data FROM pg_logical_slot_peek_binary_changes(
        {slot}, {upto}::pg_lsn, {most}, 'proto_version', '1', 'publication_names', {publication}{more})
) TO STDOUT (FORMAT binary)

-- name: published
SELECT n.nspname::text, c.relname::text
  FROM pg_publication p
  JOIN pg_publication_rel r ON r.prpubid = p.oid
  JOIN pg_class c ON c.oid = r.prrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE p.pubname = %(publication)s
