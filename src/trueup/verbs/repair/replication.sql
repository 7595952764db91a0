-- name: node
-- Whether this role may write under a replication origin, and the logical slots of the database. Slots of trueup read
-- changes and apply none.
SELECT current_user::text AS role,
       NOT EXISTS (SELECT FROM unnest(%(functions)s::text[]) f WHERE NOT has_function_privilege(f, 'EXECUTE')) AS may_set_origin,
       coalesce(current_setting('max_active_replication_origins', true),
                current_setting('max_replication_slots'))::int AS most_origins,
       ARRAY(SELECT ARRAY[s.slot_name::text, s.plugin::text] FROM pg_replication_slots s
              WHERE s.slot_type = 'logical' AND s.database = current_database()
                AND NOT starts_with(s.slot_name::text, 'trueup_') ORDER BY 1) AS slots

-- name: position
SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END::text

-- name: has_passed
-- Whether the reader of a slot has confirmed all changes before a position; no row: the slot was dropped.
SELECT confirmed_flush_lsn >= %(position)s::pg_lsn FROM pg_replication_slots WHERE slot_name = %(slot)s

-- name: publications
-- All publications; whether each publishes inserted rows of the table: of itself, of its partitions, or of the table
-- that it is a partition of (NULL: it does not contain the table).
SELECT p.pubname::text, CASE WHEN EXISTS (
           SELECT FROM pg_publication_tables t
             JOIN pg_namespace n ON n.nspname = t.schemaname
             JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
            WHERE t.pubname = p.pubname AND c.oid IN (
                  SELECT %(table)s::regclass::oid
                  UNION ALL SELECT relid FROM pg_partition_tree(%(table)s::regclass)
                  UNION ALL SELECT relid FROM pg_partition_ancestors(%(table)s::regclass))) THEN p.pubinsert END
  FROM pg_publication p

-- name: subscriptions
-- The subscriptions of this database that have a slot, and whether they fill the table.
SELECT s.subname::text, s.subslotname::text, s.subpublications::text[], s.suborigin = 'none',
       EXISTS (SELECT FROM pg_subscription_rel r WHERE r.srsubid = s.oid AND r.srrelid IN (
                   SELECT %(table)s::regclass::oid
                   UNION ALL SELECT relid FROM pg_partition_tree(%(table)s::regclass)
                   UNION ALL SELECT relid FROM pg_partition_ancestors(%(table)s::regclass)))
  FROM pg_subscription s
 WHERE s.subdbid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND s.subslotname IS NOT NULL
 ORDER BY 1

-- name: subscriptions_before_16
-- Without the option origin, which PostgreSQL 16 introduced.
SELECT s.subname::text, s.subslotname::text, s.subpublications::text[], false,
       EXISTS (SELECT FROM pg_subscription_rel r WHERE r.srsubid = s.oid AND r.srrelid IN (
                   SELECT %(table)s::regclass::oid
                   UNION ALL SELECT relid FROM pg_partition_tree(%(table)s::regclass)
                   UNION ALL SELECT relid FROM pg_partition_ancestors(%(table)s::regclass)))
  FROM pg_subscription s
 WHERE s.subdbid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND s.subslotname IS NOT NULL
 ORDER BY 1
