-- name: position
SELECT pg_current_wal_lsn()::text, clock_timestamp()

-- name: shape
-- Fingerprints of the source: another value means that something was changed. The synced tables with columns, keys,
-- indexes and defaults, and the labels of their enums; the triggers of the change log; partitions; and what does not
-- concern the rows of a round: other relations, and labels of enums that were not found. A column has another xmin after
-- ALTER TABLE ... USING, which changes values and fires no trigger; so has a trigger that was disabled or replaced, and a
-- partition that was detached and attached again. Statement triggers are those of the table that a
-- statement names, which may be a partition.
WITH RECURSIVE tree AS (
    SELECT c.oid AS root, c.oid, c.relkind = 'p' AS is_partitioned,
           -- Of a table that is a partition or a child of another one now.
           coalesce((SELECT string_agg(p.xmin::text, ' ' ORDER BY p.inhseqno) FROM pg_inherits p WHERE p.inhrelid = c.oid), '') AS version
      FROM pg_class c WHERE c.oid = ANY(%(oids)s::oid[])
    UNION ALL
    SELECT t.root, i.inhrelid, true, i.xmin::text FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid
     WHERE t.is_partitioned AND NOT i.inhdetachpending)
SELECT concat_ws('/',
    (SELECT sum(hashtextextended(concat_ws(':', a.attrelid, a.attnum, a.attname, a.atttypid, a.atttypmod, a.attisdropped,
                                           a.xmin), 0))
       FROM pg_attribute a WHERE a.attrelid = ANY(%(oids)s::oid[]) AND a.attnum > 0),
    (SELECT sum(hashtextextended(concat_ws(':', c.oid, c.relnamespace, c.relname, c.relkind, c.relpersistence), 0))
       FROM pg_class c WHERE c.oid = ANY(%(oids)s::oid[])),
    (SELECT sum(hashtextextended(concat_ws(':', k.oid, k.xmin), 0)) FROM pg_constraint k
      WHERE k.conrelid = ANY(%(oids)s::oid[])),
    (SELECT sum(hashtextextended(concat_ws(':', i.indexrelid, i.xmin), 0)) FROM pg_index i
      WHERE i.indrelid = ANY(%(oids)s::oid[])),
    (SELECT sum(hashtextextended(concat_ws(':', d.oid, d.xmin), 0)) FROM pg_attrdef d
      WHERE d.adrelid = ANY(%(oids)s::oid[])),
    (SELECT sum(hashtextextended(concat_ws(':', e.oid, e.enumlabel), 0)) FROM pg_enum e
      WHERE e.enumtypid = ANY(%(enums)s::oid[]))),
    (SELECT md5(string_agg(concat_ws(':', g.tgrelid, g.tgname, g.xmin), ',' ORDER BY g.tgrelid, g.tgname))
       FROM tree t JOIN pg_trigger g ON g.tgrelid = t.oid WHERE starts_with(g.tgname, %(prefix)s)),
    (SELECT coalesce(md5(string_agg(concat_ws(':', root, oid, version), ',' ORDER BY root, oid)), '') FROM tree),
    concat_ws('/',
    (SELECT sum(hashtextextended(concat_ws(':', c.oid, c.relnamespace, c.relname, c.relkind, c.relowner, c.relrowsecurity,
                                           CASE WHEN c.relkind = 'c' THEN c.relnatts END), 0))
       FROM pg_class c WHERE c.relkind IN ('r', 'p', 'f', 'm', 'S', 'c') AND c.relpersistence <> 't' AND NOT c.relispartition),
    (SELECT sum(hashtextextended(concat_ws(':', e.oid, e.enumlabel), 0)) FROM pg_enum e))

-- name: waiting
-- What is in the change log: entries, keys, the age of the oldest entry in seconds, and since when it is full. Without the
-- entries of tables that are set aside, where sources are given.
SELECT count(*) FILTER (WHERE is_taken),
       coalesce(sum(cardinality(ids) + coalesce(cardinality(keys), 0)) FILTER (WHERE is_taken), 0)::bigint,
       coalesce(extract(epoch FROM clock_timestamp() - min(at) FILTER (WHERE is_taken)), 0)::float8,
       min(at) FILTER (WHERE op = '!' AND payload->>'type' = 'full')
  FROM (SELECT *, %(sources)s::int[] IS NULL OR source = ANY(%(sources)s::int[]) AS is_taken FROM {log}) p

-- name: room
-- The size of the change log in bytes, and its maximum size.
SELECT pg_relation_size(c.oid) + coalesce(pg_relation_size(c.reltoastrelid), 0), t.max_bytes
  FROM trueup_log.tubes t JOIN pg_class c ON c.oid = to_regclass(format('trueup_log.%%I', 'pods_' || t.tube))
 WHERE t.tube = %(sync)s

-- name: rewritten
-- Tables, also by a partition, whose file is not that of the snapshot: the functions show the file as it is now. After a
-- rewrite by ALTER TABLE, or a TRUNCATE, the snapshot shows an empty table.
WITH RECURSIVE tree AS (
    SELECT r AS root, r AS oid FROM unnest(%(oids)s::oid[]) r
    UNION ALL
    SELECT t.root, i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid)
SELECT DISTINCT t.root::bigint, t.root::regclass::text FROM tree t JOIN pg_class c ON c.oid = t.oid AND c.relkind = 'r'
 WHERE pg_relation_filenode(c.oid) IS DISTINCT FROM c.relfilenode ORDER BY 2

-- name: size
-- The size of tables and their partitions, in bytes.
WITH RECURSIVE tree AS (
    SELECT unnest(%(oids)s::oid[]) AS oid
    UNION ALL
    SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid)
SELECT coalesce(sum(pg_table_size(oid)), 0)::bigint FROM tree

-- name: entries
-- The entries of this round by number, and the distinct keys of each table.
WITH taken AS MATERIALIZED ({taken}),
     keys AS (SELECT source, count(*) AS n, array_agg(k)::text AS literal,
                     CASE WHEN source = ANY(%(listed)s) THEN array_agg(k) END AS listed
                FROM (SELECT DISTINCT source, unnest(ids)::text AS k FROM taken
                      UNION SELECT source, unnest(keys) FROM taken)
                     -- A row that had no key for a while: now every row has one.
                     k WHERE k IS NOT NULL GROUP BY source),
     -- Grouped before the join with the keys: a list of all keys beside each entry would grow quadratically.
     entries AS (SELECT t.source, array_agg(t.seq)::text AS numbers,
                        bool_or(t.op IN ('X', '{{') OR t.op = '!' AND (t.payload->>'lost')::boolean) AS reload,
                        array_remove(array_agg(CASE WHEN t.op = '!' THEN t.payload->>'error' END), NULL) AS errors,
                        count(*) AS n, sum(cardinality(t.ids) + coalesce(cardinality(t.keys), 0))::bigint AS keys
                   FROM taken t GROUP BY t.source)
SELECT e.source, e.numbers, coalesce(k.n, 0), k.literal, k.listed, e.reload, e.errors, e.n, e.keys
  FROM entries e LEFT JOIN keys k USING (source)

-- name: taken
SELECT seq, source, op, ids, keys, payload FROM {log} WHERE source = ANY(%(sources)s::int[])

-- name: taken_bounded
-- Entries up to the maximum number of keys, but at least one entry, whatever its size.
SELECT seq, source, op, ids, keys, payload FROM (
    SELECT seq, source, op, ids, keys, payload,
           sum(1 + cardinality(ids) + coalesce(cardinality(keys), 0)) OVER (ORDER BY op = 'B', seq)
               - (1 + cardinality(ids) + coalesce(cardinality(keys), 0)) AS before
      FROM (SELECT * FROM {log} WHERE source = ANY(%(sources)s::int[]) ORDER BY op = 'B', seq LIMIT %(limit)s) p) w
 WHERE before < %(limit)s

-- name: delete
DELETE FROM {log} p USING unnest(%s::bigint[]) x(seq), (VALUES (true), (false)) y(later)
 WHERE p.seq = x.seq AND (p.op = 'B') = y.later
