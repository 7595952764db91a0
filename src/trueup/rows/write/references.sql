-- name: deferrable
-- Deferrable constraints: triggers check them, so they are not checked while triggers are silenced.
SELECT conname::text AS name, contype::text AS kind,
       (SELECT array_agg(a.attname::text ORDER BY k.ord) FROM unnest(x.conkey) WITH ORDINALITY k(attnum, ord)
          JOIN pg_attribute a ON a.attrelid = x.conrelid AND a.attnum = k.attnum) AS columns
  FROM pg_constraint x
 WHERE x.conrelid = format('%%I.%%I', %(schema)s::text, %(table)s::text)::regclass
   AND x.contype IN ('p', 'u', 'x') AND x.condeferrable

-- name: ancestors
-- The tables that a partition belongs to, directly or through others.
SELECT n.nspname::text AS schema, c.relname::text AS name
  FROM pg_partition_ancestors(format('%%I.%%I', %(schema)s::text, %(table)s::text)::regclass) AS a(relid)
  JOIN pg_class c ON c.oid = a.relid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid <> format('%%I.%%I', %(schema)s::text, %(table)s::text)::regclass

-- name: partitions
-- The partitions of a table, directly or through others.
SELECT n.nspname::text AS schema, c.relname::text AS name
  FROM pg_partition_tree(format('%%I.%%I', %(schema)s::text, %(table)s::text)::regclass) p
  JOIN pg_class c ON c.oid = p.relid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE p.level > 0
