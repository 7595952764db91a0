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

-- name: published
SELECT n.nspname::text, c.relname::text
  FROM pg_publication p
  JOIN pg_publication_rel r ON r.prpubid = p.oid
  JOIN pg_class c ON c.oid = r.prrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE p.pubname = %(publication)s

-- name: published_for_all
-- Publications FOR ALL TABLES with subscribers, if the table does not exist yet. Slots of trueup use a publication of
-- trueup. A slot without a connected subscriber counts, because its subscriber may be disconnected for a moment.
SELECT p.pubname::text, current_database()::text FROM pg_catalog.pg_publication p
 WHERE p.puballtables AND pg_catalog.to_regclass(%(table)s) IS NULL
   AND EXISTS (SELECT FROM pg_catalog.pg_replication_slots s
                WHERE s.database = current_database() AND s.plugin = 'pgoutput'
                  AND NOT starts_with(s.slot_name::text, 'trueup_'))
 ORDER BY 1
