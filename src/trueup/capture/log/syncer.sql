-- name: subscriptions
-- The subscriptions that fill one of these tables, or partitions of one.
SELECT DISTINCT s.subname::text, s.oid::int8
  FROM pg_subscription s
  JOIN pg_subscription_rel r ON r.srsubid = s.oid
  JOIN pg_class c ON c.oid = coalesce(pg_partition_root(r.srrelid), r.srrelid)
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE s.subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND (n.nspname, c.relname) IN (SELECT * FROM unnest(%(schemas)s::text[], %(tables)s::text[]))

-- name: may_ask_origin
SELECT has_function_privilege('pg_replication_origin_progress(text, boolean)', 'EXECUTE')

-- name: subscription_with_origin
-- The greater of the position that the leader worker has confirmed and the end of the last transaction it applied.
-- No row: the subscription was dropped.
SELECT (greatest(coalesce(max(t.latest_end_lsn), '0/0'),
                 coalesce(pg_replication_origin_progress('pg_' || %(oid)s, false), '0/0')) - '0/0')::int8
  FROM pg_subscription s
  LEFT JOIN pg_stat_subscription t ON t.subid = s.oid AND t.relid IS NULL AND to_jsonb(t) ->> 'leader_pid' IS NULL
 WHERE s.oid = %(oid)s::oid
 GROUP BY s.oid

-- name: subscription
-- No row: the subscription was dropped.
SELECT (coalesce(max(t.latest_end_lsn), '0/0') - '0/0')::int8
  FROM pg_subscription s
  LEFT JOIN pg_stat_subscription t ON t.subid = s.oid AND t.relid IS NULL AND to_jsonb(t) ->> 'leader_pid' IS NULL
 WHERE s.oid = %(oid)s::oid
 GROUP BY s.oid

-- name: named
SELECT subname::text, oid::int8 FROM pg_subscription
 WHERE subname = %(subscription)s AND subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())

-- name: may_see_versions
SELECT has_column_privilege('pg_subscription', 'xmin', 'SELECT')

-- name: versions
-- Another version after each alteration, also one that is undone.
SELECT oid::int8, subslotname::text, xmin::text FROM pg_subscription WHERE oid = ANY (%(oids)s::oid[]) ORDER BY oid

-- name: without_versions
SELECT oid::int8, subslotname::text, '' FROM pg_subscription WHERE oid = ANY (%(oids)s::oid[]) ORDER BY oid

-- name: slots
SELECT slot_name::text FROM pg_replication_slots WHERE slot_type = 'logical' AND database = current_database()

-- name: stages
-- Partitions may be copied one by one.
SELECT n.nspname::text, c.relname::text, r.srsubstate::text
  FROM pg_subscription_rel r
  JOIN pg_class c ON c.oid = coalesce(pg_partition_root(r.srrelid), r.srrelid)
  JOIN pg_namespace n ON n.oid = c.relnamespace

-- name: slot
SELECT (confirmed_flush_lsn - '0/0')::int8 FROM pg_replication_slots WHERE slot_name = %(slot)s

-- name: has_mark
SELECT to_regclass('trueup.sync_mark') IS NOT NULL

-- name: marks
-- The syncs from one source. Those of the same name have a suffix, except one.
SELECT m.sync FROM trueup.sync_mark m JOIN trueup.syncs s USING (sync)
 WHERE s.source = %(source)s
   AND (%(name)s = '' OR %(name)s IN (m.sync, regexp_replace(m.sync, '__[0-9a-f]{6}$', ''))) ORDER BY 1

-- name: mark
SELECT (source_lsn - '0/0')::int8 FROM trueup.sync_mark WHERE sync = %(sync)s
