-- name: selected
-- The tables with these names and all tables of these schemas, as they are selected: with the files of each table, which
-- are those of its partitions, and its columns. A file is replaced by TRUNCATE and by everything that writes the table
-- again.
SELECT n.nspname::text, c.relname::text, c.oid::int8,
       CASE WHEN c.relkind = 'p' THEN
           (SELECT coalesce(jsonb_object_agg(l.oid, l.relfilenode), '{}') FROM pg_partition_tree(c.oid) t
              JOIN pg_class l ON l.oid = t.relid AND l.relkind <> 'p')
       ELSE jsonb_build_object(c.oid, c.relfilenode) END,
       ARRAY(SELECT a.attname || ' ' || a.atttypid || ' ' || a.atttypmod FROM pg_attribute a
              WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum),
       -- A transaction that alters the table and is not visible yet, or was rolled back.
       c.xmax::text
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
   AND (n.nspname = ANY (%(schemas)s)
        OR (n.nspname, c.relname) IN (SELECT * FROM unnest(%(named_schemas)s::text[], %(named_tables)s::text[])))

-- name: targets
SELECT n.nspname::text, c.relname::text, c.oid::int8,
       ARRAY(SELECT a.attname || ' ' || a.atttypid || ' ' || a.atttypmod FROM pg_attribute a
              WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest(%(schemas)s::text[], %(tables)s::text[]))

-- name: subscribed
-- The publications that these subscriptions use.
SELECT DISTINCT unnest(subpublications)::text AS publication FROM pg_subscription WHERE oid = ANY (%(oids)s::oid[]) ORDER BY 1

-- name: idle
-- Those of the transactions that are not being committed: their sessions wait for the next statement.
SELECT backend_xid::text FROM pg_stat_activity
 WHERE backend_xid::text = ANY (%(xids)s) AND state LIKE 'idle in transaction%%'

-- name: name
-- The present name of a table.
SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = %(oid)s::oid
