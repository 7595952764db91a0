-- name: members
-- The table, its partitions, and the tables that it is a partition of.
SELECT n.nspname::text AS schema, c.relname::text AS name
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = format('%%I.%%I', %(schema)s::text, %(table)s::text)::regclass
    OR c.oid IN (SELECT relid FROM pg_partition_tree(format('%%I.%%I', %(schema)s::text, %(table)s::text)::regclass))
    OR c.oid IN (SELECT a.relid FROM pg_partition_ancestors(format('%%I.%%I', %(schema)s::text, %(table)s::text)::regclass)
                   AS a(relid))
