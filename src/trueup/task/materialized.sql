-- name: populated
-- The materialized views of the source that have rows; those of extensions belong to them.
SELECT n.nspname::text AS schema, c.relname::text AS name
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind = 'm' AND c.relispopulated
   AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')

-- name: views
-- The materialized views of the target, each after those that it reads, directly or through other views.
-- `is_concurrent`: it can be refreshed while others read it.
WITH RECURSIVE reads AS (
    SELECT r.ev_class AS reader, d.refobjid AS read
      FROM pg_rewrite r JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
     WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid <> r.ev_class
), closure AS (
    SELECT c.oid AS root, c.oid FROM pg_class c WHERE c.relkind = 'm'
    UNION
    SELECT k.root, r.read FROM closure k JOIN reads r ON r.reader = k.oid
)
SELECT n.nspname::text AS schema, c.relname::text AS name,
       c.relispopulated AND EXISTS (
           SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate
              AND i.indpred IS NULL AND i.indexprs IS NULL) AS is_concurrent,
       pg_has_role(c.relowner, 'USAGE') OR coalesce(has_table_privilege(c.oid, 'SELECT') AND %(maintain)s
           AND has_table_privilege(c.oid, %(privilege)s), false) AS may_refresh
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind = 'm'
 ORDER BY (SELECT count(*) FROM closure k JOIN pg_class m ON m.oid = k.oid AND m.relkind = 'm' WHERE k.root = c.oid), 1, 2

-- name: stale
-- The tables of these names without statistics, or with many changes since they were collected.
SELECT n.nspname::text AS schema, c.relname::text AS name
  FROM unnest(%(schemas)s::text[], %(names)s::text[]) w(schema, name)
  JOIN pg_namespace n ON n.nspname = w.schema JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
 WHERE EXISTS (
    SELECT FROM pg_partition_tree(c.oid) p JOIN pg_class l ON l.oid = p.relid
      LEFT JOIN pg_stat_all_tables s ON s.relid = l.oid
     WHERE l.reltuples < 0 OR p.isleaf AND s.n_mod_since_analyze > 1000 + 0.1 * l.reltuples)
    OR c.relkind = 'r' AND (c.reltuples < 0 OR (SELECT s.n_mod_since_analyze FROM pg_stat_all_tables s WHERE s.relid = c.oid)
                                               > 1000 + 0.1 * c.reltuples)

-- name: not_analyzed
-- Of these tables and their partitions, those that the role may not analyze: it does not own the table or the database.
SELECT n.nspname::text AS schema, c.relname::text AS name
  FROM unnest(%(schemas)s::text[], %(names)s::text[]) w(schema, name)
  CROSS JOIN LATERAL (SELECT to_regclass(format('%%I.%%I', w.schema, w.name))::oid AS root) r
  CROSS JOIN LATERAL (SELECT r.root AS oid UNION SELECT t.relid FROM pg_partition_tree(r.root) t) p
  JOIN pg_class c ON c.oid = p.oid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE NOT pg_has_role(c.relowner, 'USAGE')
   AND NOT pg_has_role((SELECT d.datdba FROM pg_database d WHERE d.datname = current_database()), 'USAGE')
   AND NOT (%(maintain)s AND has_table_privilege(c.oid, %(privilege)s))
 ORDER BY 1, 2
