-- name: selected
-- The tables with these names and all tables of these schemas, as they are selected: with the files of each table and of
-- its partitions, and its columns. A file is replaced by TRUNCATE and by everything that writes the table again. While
-- a partition is detached, its changes are not those of the table: each partition has the transaction that attached it.
SELECT n.nspname::text, c.relname::text, c.oid::int8, t.files,
       -- A column that was dropped and added again has another number. The last part: whether rows that existed before
       -- the column have a value.
       ARRAY(SELECT concat_ws(' ', a.attname, a.atttypid, a.atttypmod, a.attnum, a.atthasmissing) FROM pg_attribute a
              WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum),
       t.writers, t.limits
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 CROSS JOIN LATERAL (
       SELECT jsonb_object_agg(l.oid, concat_ws('/', l.relfilenode, i.xmin)) AS files,
              -- Transactions that alter the table and are not visible yet, or were rolled back.
              array_agg(l.xmax::text) || array_agg(i.xmax::text) FILTER (WHERE i.xmax IS NOT NULL) AS writers,
              -- Parts of the table whose changes are not seen. A table with a key has no foreign partitions.
              jsonb_build_object(
                  'unlogged', min(l.oid::regclass::text) FILTER (WHERE l.relkind = 'r' AND l.relpersistence <> 'p'),
                  'heir', (SELECT min(h.inhrelid::regclass::text) FROM pg_inherits h
                            WHERE h.inhparent = c.oid AND c.relkind = 'r')) AS limits
         FROM (SELECT c.oid AS relid UNION SELECT relid FROM pg_partition_tree(c.oid)) m
         JOIN pg_class l ON l.oid = m.relid
         LEFT JOIN pg_inherits i ON i.inhrelid = l.oid AND l.relispartition) t
 WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
   AND (n.nspname = ANY (%(schemas)s)
        OR (n.nspname, c.relname) IN (SELECT * FROM unnest(%(named_schemas)s::text[], %(named_tables)s::text[])))

-- name: targets
SELECT n.nspname::text, c.relname::text, c.oid::int8,
       -- The last part: whether rows that were written without the column have a value.
       ARRAY(SELECT concat_ws(' ', a.attname, a.atttypid, a.atttypmod, a.attnum, a.atthasmissing OR a.atthasdef)
               FROM pg_attribute a
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
