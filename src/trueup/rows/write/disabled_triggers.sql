-- name: triggers
-- The triggers and rules of tables and their partitions, without those of trueup, of foreign keys and of unique constraints.
WITH named AS (
    SELECT to_regclass(format('%%I.%%I', s, n))::oid AS oid FROM unnest(%(schemas)s::text[], %(names)s::text[]) x(s, n)
), tables AS (
    SELECT oid, 0 AS level FROM named WHERE oid IS NOT NULL
     UNION SELECT t.relid, t.level FROM named, LATERAL pg_partition_tree(oid) t
), found AS (
    SELECT 'trigger' AS kind, g.oid, g.tgrelid AS relation, g.tgname::text AS name, g.tgenabled::text AS state, t.level
      FROM tables t JOIN pg_trigger g ON g.tgrelid = t.oid JOIN pg_proc p ON p.oid = g.tgfoid
     WHERE (NOT g.tgisinternal OR g.tgparentid <> 0)
       AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.oid = g.tgconstraint AND k.contype <> 't')
       AND coalesce(obj_description(p.pronamespace, 'pg_namespace'), '') <> 'Tubes of trueup.'
       AND p.oid IS DISTINCT FROM to_regprocedure('trueup.switchover_guard()')
    UNION ALL
    SELECT 'rule', r.oid, r.ev_class, r.rulename::text, r.ev_enabled::text, t.level
      FROM tables t JOIN pg_rewrite r ON r.ev_class = t.oid WHERE r.ev_type <> '1'
)
SELECT f.kind, f.oid::bigint AS oid, n.nspname::text AS schema, c.relname::text AS "table", f.name, f.state,
       pg_has_role(c.relowner, 'USAGE') AS is_owned
  FROM found f JOIN pg_class c ON c.oid = f.relation JOIN pg_namespace n ON n.oid = c.relnamespace
 ORDER BY f.level, 3, 4, 1 DESC, 5

-- name: recorded
-- By oid, with the names of today; else by name: a database that was restored from a dump has other oids.
WITH now AS (
    SELECT 'trigger' AS kind, g.oid, g.tgrelid AS relation, g.tgname AS name FROM pg_trigger g
     UNION ALL SELECT 'rule', r.oid, r.ev_class, r.rulename FROM pg_rewrite r
), found AS (
    SELECT d.kind, d.state, coalesce(
               (SELECT w.oid FROM now w WHERE w.kind = d.kind AND w.oid = d.oid AND (w.relation = d.relation OR w.name = d.name)),
               (SELECT w.oid FROM now w WHERE w.kind = d.kind AND w.name = d.name
                   AND w.relation = to_regclass(format('%%I.%%I', d.schema, d."table")))) AS oid
      FROM trueup.sync_disabled d WHERE %(sync)s::text IS NULL OR d.sync = %(sync)s
)
SELECT f.kind, f.oid::bigint AS oid, n.nspname::text AS schema, c.relname::text AS "table", w.name::text AS name, f.state,
       pg_has_role(c.relowner, 'USAGE') AS is_owned
  FROM found f JOIN now w ON w.kind = f.kind AND w.oid = f.oid JOIN pg_class c ON c.oid = w.relation
  JOIN pg_namespace n ON n.oid = c.relnamespace
 ORDER BY c.relispartition, 3, 4, 1 DESC, 5

-- name: record
INSERT INTO trueup.sync_disabled (sync, kind, oid, relation, schema, "table", name, state)
VALUES (%(sync)s, %(kind)s, %(oid)s, to_regclass(format('%%I.%%I', %(schema)s::text, %(table)s::text)), %(schema)s, %(table)s, %(name)s, %(state)s)

-- name: forget
DELETE FROM trueup.sync_disabled WHERE sync = %(sync)s

-- name: forget_one
DELETE FROM trueup.sync_disabled d
 WHERE d.sync = %(sync)s AND d.kind = %(kind)s
   AND (d.oid = %(oid)s OR (d.schema, d."table", d.name) = (%(schema)s, %(table)s, %(name)s))
