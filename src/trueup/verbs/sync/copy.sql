-- name: leaves
-- The tables that store rows: a plain table, or the leaf partitions of a partitioned one. Read in the snapshot, also
-- their files: functions such as pg_relation_filenode and pg_partition_tree show what is there now, and lock it.
WITH RECURSIVE tree AS (
    SELECT c.oid AS root, c.oid FROM pg_class c WHERE c.oid = ANY(%(oids)s::oid[])
    UNION ALL
    SELECT t.root, i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid
      JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition WHERE NOT i.inhdetachpending)
SELECT t.root::bigint, c.oid::bigint, n.nspname::text, c.relname::text, c.relfilenode::bigint,
       coalesce(CASE WHEN %(sizes)s THEN pg_relation_size(c.oid) / b.size END, c.relpages),
       coalesce(CASE WHEN %(sizes)s THEN pg_table_size(c.oid) END, c.relpages * b.size),
       coalesce(a.amname = 'heap', false)
  FROM tree t
  JOIN pg_class c ON c.oid = t.oid AND c.relkind = 'r'
  JOIN pg_namespace n ON n.oid = c.relnamespace
  CROSS JOIN (SELECT current_setting('block_size')::bigint AS size) b
  LEFT JOIN pg_am a ON a.oid = c.relam
 ORDER BY 7 DESC, 2

-- name: shapes
-- A fingerprint of name and columns per table: what a copy of its rows depends on.
SELECT c.oid::bigint, md5(concat_ws('/', c.relnamespace, c.relname, c.relkind, string_agg(
           concat_ws(':', a.attnum, a.attname, a.atttypid, a.atttypmod, a.attgenerated), '/' ORDER BY a.attnum)))
  FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE c.oid = ANY(%(oids)s::oid[]) GROUP BY c.oid, c.relnamespace, c.relname, c.relkind

-- name: done
SELECT relation::bigint, file::bigint, first_page, end_page FROM trueup.copied WHERE sync = %s

-- name: rows_of
SELECT rows FROM trueup.copied WHERE sync = %s AND relation = %s AND file = %s AND first_page = %s

-- name: rows
UPDATE trueup.copied SET rows = %s WHERE sync = %s AND relation = %s AND file = %s AND first_page = %s
