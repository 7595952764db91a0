-- name: selected
-- The tables with these names and all tables of these schemas, as they are selected: with the files of each table and of
-- its partitions, and its columns. A file is replaced by TRUNCATE and by everything that writes the table again. While
-- a partition is detached, its changes are not those of the table: each partition has the transaction that attached it.
-- The log identifies rows by the replica identity of their partition: another one may lack the key.
SELECT n.nspname::text, c.relname::text, c.oid::int8, t.files,
       -- A column that was dropped and added again has another number. The last part: whether rows that existed before
       -- the column have a value.
       ARRAY(SELECT concat_ws(' ', a.attname, a.atttypid, a.atttypmod, a.attnum, a.atthasmissing) FROM pg_attribute a
              WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum),
       t.writers, t.limits
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 CROSS JOIN LATERAL (
       SELECT jsonb_object_agg(l.oid, concat_ws('/', l.relfilenode, i.xmin, CASE WHEN l.relispartition THEN
                  nullif(l.relreplident, 'd')::text || coalesce((SELECT x.indexrelid::text FROM pg_index x
                                                            WHERE x.indrelid = l.oid AND x.indisreplident), '') END)) AS files,
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
              WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum),
       (SELECT jsonb_object_agg(l.oid, concat_ws('/', l.relfilenode, CASE WHEN l.relispartition THEN
                   nullif(l.relreplident, 'd')::text || coalesce((SELECT x.indexrelid::text FROM pg_index x
                                                             WHERE x.indrelid = l.oid AND x.indisreplident), '') END))
          FROM (SELECT c.oid AS relid UNION SELECT relid FROM pg_partition_tree(c.oid)) m JOIN pg_class l ON l.oid = m.relid)
       || jsonb_build_object('columns', (SELECT md5(string_agg(a.xmin::text, ' ' ORDER BY a.attnum)) FROM pg_attribute a
                                          WHERE a.attrelid = c.oid AND a.attnum > 0))
       -- A partition that was detached and attached again has another value: its rows may have been changed meanwhile.
       || (SELECT coalesce(jsonb_object_agg('attached ' || i.inhrelid, i.xmin::text), '{}')
             FROM pg_partition_tree(c.oid) m JOIN pg_inherits i ON i.inhrelid = m.relid WHERE m.relid <> c.oid),
       -- Rows of a table that inherits are rows of the table, and its changes are not seen.
       (SELECT min(h.inhrelid::regclass::text) FROM pg_inherits h WHERE h.inhparent = c.oid AND c.relkind = 'r')
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest(%(schemas)s::text[], %(tables)s::text[]))

-- name: meanings
-- Per table, definitions that stored values depend on: labels of enumerations, fields of composite
-- types, expressions of virtual columns. A label that is added has a key of its own.
WITH RECURSIVE types AS (
    SELECT a.attrelid AS relation, a.atttypid AS oid FROM pg_attribute a
     WHERE a.attrelid = ANY (%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid >= 16384
    UNION
    SELECT t.relation, part.oid FROM types t JOIN pg_type y ON y.oid = t.oid CROSS JOIN LATERAL (
           SELECT y.typbasetype WHERE y.typtype = 'd'
           UNION ALL SELECT y.typelem WHERE y.typcategory = 'A'
           UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE y.oid IN (r.rngtypid, r.rngmultitypid)
           UNION ALL SELECT f.atttypid FROM pg_attribute f
                      WHERE y.typtype = 'c' AND f.attrelid = y.typrelid AND f.attnum > 0 AND NOT f.attisdropped) part(oid)
     WHERE part.oid >= 16384
)
SELECT m.relation::int8, jsonb_object_agg(m.place, m.meaning) FROM (
       SELECT t.relation, 'label ' || e.oid, e.enumlabel::text FROM types t JOIN pg_enum e ON e.enumtypid = t.oid
       UNION ALL
       SELECT t.relation, 'type ' || t.oid, string_agg(concat_ws(' ', f.attnum, f.atttypid, f.atttypmod), ',' ORDER BY f.attnum)
         FROM types t JOIN pg_type y ON y.oid = t.oid AND y.typtype = 'c'
         JOIN pg_attribute f ON f.attrelid = y.typrelid AND f.attnum > 0 AND NOT f.attisdropped
        GROUP BY t.relation, t.oid
       UNION ALL
       SELECT d.adrelid, 'column ' || d.adnum, pg_get_expr(d.adbin, d.adrelid)
         FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
        WHERE d.adrelid = ANY (%(oids)s::oid[]) AND a.attgenerated = 'v') m(relation, place, meaning)
 GROUP BY 1

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
