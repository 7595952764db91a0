-- name: fingerprint
-- A fingerprint of the catalog rows of these tables and their partitions, by the transactions that wrote them.
WITH named AS (
    SELECT to_regclass(format('%%I.%%I', s, n))::oid AS oid FROM unnest(%(schemas)s::text[], %(names)s::text[]) x(s, n)
), tables AS (
    SELECT oid FROM named UNION SELECT t.relid FROM named, LATERAL pg_partition_tree(oid) t
)
SELECT concat_ws('/', (SELECT count(*) FROM tables),
    (SELECT sum(hashtextextended(concat_ws(':', a.attrelid, a.attnum, a.xmin), 0)) FROM pg_attribute a JOIN tables t ON t.oid = a.attrelid),
    (SELECT sum(hashtextextended(concat_ws(':', c.oid, c.xmin), 0)) FROM pg_constraint c JOIN tables t ON t.oid = c.conrelid),
    (SELECT sum(hashtextextended(concat_ws(':', i.indexrelid, i.xmin), 0)) FROM pg_index i JOIN tables t ON t.oid = i.indrelid),
    (SELECT sum(hashtextextended(concat_ws(':', g.oid, g.xmin), 0)) FROM pg_trigger g JOIN tables t ON t.oid = g.tgrelid),
    (SELECT sum(hashtextextended(concat_ws(':', d.oid, d.xmin), 0)) FROM pg_attrdef d JOIN tables t ON t.oid = d.adrelid),
    (SELECT sum(hashtextextended(concat_ws(':', c.oid, c.relname, c.relnamespace, c.relkind, c.relispartition), 0))
       FROM pg_class c JOIN tables t ON t.oid = c.oid))

-- name: prepared
SELECT gid, owner::text FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared
