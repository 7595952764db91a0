-- name: slot
-- The plugin, the positions, whether the slot was invalidated, and the bytes of log that it retains.
SELECT plugin::text, restart_lsn - '0/0' AS restart, confirmed_flush_lsn - '0/0' AS confirmed,
       to_jsonb(s) ->> 'wal_status' = 'lost' OR to_jsonb(s) ->> 'invalidation_reason' IS NOT NULL AS is_lost,
       coalesce(pg_current_wal_lsn() - restart_lsn, 0)::int8 AS retained
  FROM pg_replication_slots s
 WHERE slot_name = %(slot)s

-- name: peek
COPY (
    SELECT data FROM pg_logical_slot_peek_binary_changes(
        {slot}, {upto}::pg_lsn, {max_messages}, 'proto_version', '1', 'publication_names', {publication}{messages})
) TO STDOUT (FORMAT binary)
