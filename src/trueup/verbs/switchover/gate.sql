-- name: fingerprint
-- A fingerprint of the catalog rows of these tables and their partitions, by the transactions that wrote them. Triggers and rules by
-- their contents: the pause enables some of them, and the fingerprint of that is known before.
WITH named AS (
    SELECT to_regclass(format('%%I.%%I', s, n))::oid AS oid FROM unnest(%(schemas)s::text[], %(names)s::text[]) x(s, n)
), tables AS (
    SELECT oid FROM named UNION SELECT t.relid FROM named, LATERAL pg_partition_tree(oid) t
)
SELECT concat_ws('/', (SELECT count(*) FROM tables),
    (SELECT sum(hashtextextended(concat_ws(':', a.attrelid, a.attnum, a.xmin), 0)) FROM pg_attribute a JOIN tables t ON t.oid = a.attrelid),
    (SELECT sum(hashtextextended(concat_ws(':', c.oid, c.xmin), 0)) FROM pg_constraint c JOIN tables t ON t.oid = c.conrelid),
    (SELECT sum(hashtextextended(concat_ws(':', i.indexrelid, i.xmin), 0)) FROM pg_index i JOIN tables t ON t.oid = i.indrelid),
    (SELECT sum(hashtextextended(concat_ws(':', g.oid, g.tgname, g.tgfoid, g.tgtype, g.tgenabled, g.tgisinternal, g.tgconstrrelid,
        g.tgconstrindid, g.tgconstraint, g.tgparentid, g.tgdeferrable, g.tginitdeferred, g.tgattr, g.tgargs, g.tgqual, g.tgoldtable,
        g.tgnewtable), 0)) FROM pg_trigger g JOIN tables t ON t.oid = g.tgrelid),
    (SELECT sum(hashtextextended(concat_ws(':', r.oid, r.rulename, r.ev_type, r.ev_enabled, r.is_instead, r.ev_qual, r.ev_action), 0))
       FROM pg_rewrite r JOIN tables t ON t.oid = r.ev_class),
    (SELECT sum(hashtextextended(concat_ws(':', p.oid, p.xmin), 0)) FROM pg_policy p JOIN tables t ON t.oid = p.polrelid),
    (SELECT sum(hashtextextended(concat_ws(':', d.oid, d.xmin), 0)) FROM pg_attrdef d JOIN tables t ON t.oid = d.adrelid),
    (SELECT sum(hashtextextended(concat_ws(':', c.oid, c.relname, c.relnamespace, c.relkind, c.relispartition, c.relowner,
        c.relacl, c.relrowsecurity, c.relforcerowsecurity), 0))
       FROM pg_class c JOIN tables t ON t.oid = c.oid))

-- name: oids
SELECT c.oid::bigint FROM unnest(%(schemas)s::text[], %(names)s::text[]) x(s, n)
  JOIN pg_namespace p ON p.nspname = x.s JOIN pg_class c ON c.relnamespace = p.oid AND c.relname = x.n

-- name: prepared
SELECT gid, owner::text FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared

-- name: prepared_before
SELECT gid, owner::text FROM pg_prepared_xacts
 WHERE database = current_database() AND prepared < clock_timestamp() - %(seconds)s * interval '1 second' ORDER BY prepared
