-- name: relations
-- All relations with user rows, and the facts that decide whether they can be synced. Partitions belong to their table.
WITH RECURSIVE tree AS (
    -- Without catalogs, whose sizes would take most of the time.
    SELECT c.oid AS root, c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relkind IN ('r', 'p', 'f', 'm') AND NOT c.relispartition AND c.relpersistence <> 't'
       AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', %(state)s, %(log)s)
    UNION ALL
    SELECT t.root, i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid
      JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition
), parts AS (
    SELECT t.root, array_remove(array_agg(CASE WHEN c.relkind = 'f' AND t.root <> c.oid THEN c.oid::regclass::text END), NULL)
               AS foreign_parts,
           array_remove(array_agg(CASE WHEN c.relpersistence = 'u' AND c.relkind <> 'p' THEN c.oid::regclass::text END),
               NULL) AS unlogged
      FROM tree t JOIN pg_class c ON c.oid = t.oid GROUP BY t.root
)
SELECT n.nspname::text AS schema, c.relname::text AS name, c.oid, c.relkind::text AS kind,
       c.relpersistence::text AS persistence, c.relispopulated AS populated, p.foreign_parts, p.unlogged,
       EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid) AS inherits,
       EXISTS (SELECT FROM pg_inherits i JOIN pg_class k ON k.oid = i.inhrelid
                WHERE i.inhparent = c.oid AND NOT k.relispartition) AS is_inherited,
       (SELECT e.extname::text FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
         WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
           AND d.refclassid = 'pg_extension'::regclass) AS extension,
       coalesce(obj_description(n.oid, 'pg_namespace'), '') = 'Tubes of trueup.' AS is_ours,
       pg_has_role(c.relowner, 'USAGE') AS is_owner, c.relowner::regrole::text AS owner,
       row_security_active(c.oid) AS secured,
       EXISTS (SELECT FROM pg_subscription_rel r JOIN tree t ON t.oid = r.srrelid WHERE t.root = c.oid) AS is_subscribed
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN parts p ON p.root = c.oid
 ORDER BY 1, 2

-- name: sizes
-- Rows, estimated, and bytes of these tables with their partitions. The server waits for the locks on each: do not ask for
-- tables that are not needed, because their owners may keep them locked.
WITH RECURSIVE tree AS (
    SELECT o.oid AS root, o.oid FROM unnest(%(oids)s::oid[]) o(oid)
    UNION ALL
    SELECT t.root, i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid
      JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition
)
-- A table that was never analyzed: rows of 400 bytes.
SELECT t.root, sum(CASE WHEN c.reltuples < 0 THEN pg_relation_size(c.oid) / 400 ELSE c.reltuples END)::bigint,
       sum(pg_table_size(c.oid))::bigint
  FROM tree t JOIN pg_class c ON c.oid = t.oid GROUP BY t.root

-- name: tables
SELECT c.oid::bigint AS oid, n.nspname::text AS schema, c.relname::text AS name,
       (SELECT e.extname::text FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
         WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
           AND d.refclassid = 'pg_extension'::regclass) AS extension
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p', 'f') AND NOT c.relispartition AND c.relpersistence <> 't'
   AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', %(state)s, %(log)s)
   AND coalesce(obj_description(n.oid, 'pg_namespace'), '') <> 'Tubes of trueup.'
 ORDER BY 2, 3

-- name: sequences
SELECT n.nspname::text AS schema, c.relname::text AS name,
       coalesce((SELECT format('%%s.%%I', d.refobjid::regclass, a.attname) FROM pg_depend d
                   JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
                  WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype IN ('a', 'i')
                    AND d.refclassid = 'pg_class'::regclass AND d.refobjsubid > 0), '') AS owner,
       format('%%s start %%s increment %%s from %%s to %%s cache %%s%%s', format_type(s.seqtypid, NULL), s.seqstart,
              s.seqincrement, s.seqmin, s.seqmax, s.seqcache, CASE WHEN s.seqcycle THEN ' cycle' ELSE '' END) AS definition,
       has_sequence_privilege(c.oid, 'SELECT') AS may_read, has_sequence_privilege(c.oid, 'UPDATE') AS may_write,
       (SELECT array_agg(DISTINCT u.refobjid) FROM (
            -- The table that owns the sequence, and the tables whose defaults use it.
            SELECT d.refobjid FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
               AND d.deptype IN ('a', 'i') AND d.refclassid = 'pg_class'::regclass
            UNION SELECT f.adrelid FROM pg_depend d JOIN pg_attrdef f ON f.oid = d.objid
             WHERE d.classid = 'pg_attrdef'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = c.oid) u) AS users
  FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', %(state)s, %(log)s) AND c.relpersistence <> 't'
   AND coalesce(obj_description(n.oid, 'pg_namespace'), '') <> 'Tubes of trueup.'
   AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
 ORDER BY 1, 2
