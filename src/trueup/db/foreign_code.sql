-- name: is_superuser
-- Code can go back from the role that was set to the one that logged in.
SELECT coalesce(bool_or(r.rolsuper), false) FROM pg_roles r WHERE r.rolname IN (current_user, session_user)

-- name: writer
-- Whether the session is a superuser's, the role that was set, and whether that one is a superuser.
SELECT coalesce(bool_or(r.rolsuper), false), current_user, coalesce(bool_or(r.rolsuper) FILTER (WHERE r.rolname = current_user), false)
  FROM pg_roles r WHERE r.rolname IN (current_user, session_user)

-- name: has_functions
-- Whether roles that are not superusers own any function. A role that does not exist any more is not a superuser.
SELECT EXISTS (SELECT FROM pg_proc f WHERE f.proowner NOT IN (SELECT r.oid FROM pg_roles r WHERE r.rolsuper))

-- name: used
-- Begins the statements below. A root is the place of a table in the list; with what is used by using it, and whether
-- that is written.
WITH RECURSIVE roots AS (
    SELECT w.root, c.oid FROM unnest(%(schemas)s::text[], %(tables)s::text[]) WITH ORDINALITY w(schema, name, root)
      JOIN pg_namespace n ON n.nspname = w.schema::name JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name::name
), uses(oid, other, is_written) AS (
    -- NULL: written if the first one is.
    SELECT i.inhparent, i.inhrelid, NULL::boolean FROM pg_inherits i
    -- Tables that are read to check references, and those that a foreign key writes to.
    UNION SELECT k.conrelid, k.confrelid, false FROM pg_constraint k WHERE k.contype = 'f'
    UNION SELECT k.confrelid, k.conrelid, false FROM pg_constraint k WHERE k.contype = 'f'
    UNION SELECT k.confrelid, k.conrelid, true FROM pg_constraint k
           WHERE NOT %(silenced)s AND k.contype = 'f' AND (k.confdeltype IN ('c', 'n', 'd') OR k.confupdtype IN ('c', 'n', 'd'))
), used(root, oid, is_written) AS (
    SELECT t.root, t.oid, %(writes)s FROM roots t
    UNION
    SELECT u.root, x.other, coalesce(x.is_written, u.is_written) FROM used u JOIN uses x ON x.oid = u.oid
     WHERE u.is_written OR x.is_written IS NULL
), relations AS (
    SELECT u.oid, bool_or(u.is_written) AS is_written FROM used u GROUP BY u.oid
)

-- name: foreign_code
-- The root, where, the function, and its owner: functions of roles that are not superusers.
, types AS (
    SELECT u.oid AS relation, a.atttypid AS oid FROM relations u
      JOIN pg_attribute a ON a.attrelid = u.oid AND a.attnum > 0 AND NOT a.attisdropped WHERE u.is_written
    UNION
    -- The types that a type contains: the base of a domain, elements, ranges, bounds, fields.
    SELECT t.relation, part.oid FROM types t JOIN pg_type y ON y.oid = t.oid CROSS JOIN LATERAL (
           SELECT y.typbasetype WHERE y.typtype = 'd'
           UNION ALL SELECT y.typelem WHERE y.typcategory = 'A'
           UNION ALL SELECT unnest(ARRAY[r.rngsubtype, r.rngtypid]) FROM pg_range r WHERE y.oid IN (r.rngtypid, r.rngmultitypid)
           UNION ALL SELECT f.atttypid FROM pg_attribute f
                      WHERE y.typtype = 'c' AND f.attrelid = y.typrelid AND f.attnum > 0 AND NOT f.attisdropped) part(oid)
), users(relation, by_writes, classid, objid, what) AS (
    SELECT u.oid, false, 'pg_class'::regclass, i.indexrelid, format('the index %%s', i.indexrelid::regclass)
      FROM relations u JOIN pg_index i ON i.indrelid = u.oid WHERE i.indexprs IS NOT NULL OR i.indpred IS NOT NULL
    UNION ALL
    SELECT u.oid, false, 'pg_class'::regclass, u.oid, 'the partition key' FROM relations u JOIN pg_partitioned_table p ON p.partrelid = u.oid
    UNION ALL
    SELECT u.oid, false, 'pg_statistic_ext'::regclass, s.oid, format('the statistics object %%I', s.stxname)
      FROM relations u JOIN pg_statistic_ext s ON s.stxrelid = u.oid
    UNION ALL
    SELECT u.oid, false, 'pg_constraint'::regclass, k.oid, format('the constraint %%I', k.conname)
      FROM relations u JOIN pg_constraint k ON k.conrelid = u.oid WHERE k.contype IN ('c', 'x')
    UNION ALL
    SELECT u.oid, true, 'pg_trigger'::regclass, g.oid, format('the trigger %%I', g.tgname)
      FROM relations u JOIN pg_trigger g ON g.tgrelid = u.oid
     WHERE u.is_written AND NOT g.tgisinternal AND g.tgenabled <> 'D' AND (NOT %(silenced)s OR g.tgenabled IN ('A', 'R'))
       -- Triggers of trueup are not disabled, and any role can create a schema that looks like one of trueup.
       AND (NOT %(disabled)s OR EXISTS (SELECT FROM pg_proc f WHERE f.oid = g.tgfoid
            AND (obj_description(f.pronamespace, 'pg_namespace') = 'Tubes of trueup.' OR f.oid = to_regprocedure('trueup.switchover_guard()'))))
    UNION ALL
    SELECT t.relation, true, 'pg_constraint'::regclass, k.oid, format('the constraint %%I of the domain %%s', k.conname, format_type(t.oid, NULL))
      FROM types t JOIN pg_constraint k ON k.contypid = t.oid
    UNION ALL
    SELECT u.oid, true, 'pg_attrdef'::regclass, d.oid, format('the default or generated value of the column %%I', a.attname)
      FROM relations u JOIN pg_attrdef d ON d.adrelid = u.oid JOIN pg_attribute a ON a.attrelid = u.oid AND a.attnum = d.adnum
     WHERE u.is_written
    UNION ALL
    SELECT u.oid, true, 'pg_rewrite'::regclass, r.oid, format('the rule %%I', r.rulename)
      FROM relations u JOIN pg_rewrite r ON r.ev_class = u.oid AND r.ev_type <> '1' WHERE u.is_written
), classes(relation, by_writes, oid) AS (
    -- How values are compared: in indexes, by partition keys, in ranges, and where no operator class is named.
    SELECT u.oid, false, c.oid FROM relations u JOIN pg_index i ON i.indrelid = u.oid CROSS JOIN unnest(i.indclass::oid[]) c(oid)
    UNION SELECT u.oid, false, c.oid FROM relations u JOIN pg_partitioned_table p ON p.partrelid = u.oid CROSS JOIN unnest(p.partclass::oid[]) c(oid)
    UNION SELECT t.relation, true, g.rngsubopc FROM types t JOIN pg_range g ON g.rngtypid = t.oid
    UNION SELECT t.relation, true, c.oid FROM types t JOIN pg_opclass c ON c.opcintype = t.oid AND c.opcdefault
), found(relation, by_writes, place, function) AS (
    SELECT k.relation, k.by_writes, format('the operator class %%I of %%s', c.opcname, k.relation::regclass), x.oid
      FROM classes k JOIN pg_opclass c ON c.oid = k.oid AND c.oid >= 16384
     CROSS JOIN LATERAL (
           SELECT a.amproc::oid FROM pg_amproc a WHERE a.amprocfamily = c.opcfamily
           UNION SELECT o.oprcode FROM pg_amop a JOIN pg_operator o ON o.oid = a.amopopr WHERE a.amopfamily = c.opcfamily) x(oid)
    UNION ALL
    SELECT u.relation, u.by_writes, format('%%s of %%s', u.what, u.relation::regclass),
           CASE WHEN d.refclassid = 'pg_proc'::regclass THEN d.refobjid ELSE o.oprcode::oid END
      FROM users u JOIN pg_depend d ON d.classid = u.classid AND d.objid = u.objid
      LEFT JOIN pg_operator o ON d.refclassid = 'pg_operator'::regclass AND o.oid = d.refobjid
     WHERE d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass)
)
SELECT DISTINCT u.root, x.place, f.oid::regprocedure::text, pg_get_userbyid(f.proowner)::text
  FROM found x JOIN pg_proc f ON f.oid = x.function AND f.proowner NOT IN (SELECT r.oid FROM pg_roles r WHERE r.rolsuper)
  JOIN used u ON u.oid = x.relation AND (u.is_written OR NOT x.by_writes)
 ORDER BY 1, 2

-- name: definitions
-- Functions of roles that are not superusers: of event triggers, and of these operator classes (quoted names), which an
-- index uses while it is built and a partition when its bounds are compared.
SELECT format('the event trigger %%I', e.evtname) AS place, f.oid::regprocedure::text, pg_get_userbyid(f.proowner)::text
  FROM pg_event_trigger e JOIN pg_proc f ON f.oid = e.evtfoid JOIN pg_roles r ON r.oid = f.proowner AND NOT r.rolsuper
 WHERE e.evtenabled <> 'D'
UNION
SELECT format('the operator class %%I', c.opcname), f.oid::regprocedure::text, pg_get_userbyid(f.proowner)::text
  FROM pg_opclass c JOIN pg_namespace n ON n.oid = c.opcnamespace
 CROSS JOIN LATERAL (
       SELECT a.amproc::oid FROM pg_amproc a WHERE a.amprocfamily = c.opcfamily
       UNION SELECT o.oprcode FROM pg_amop a JOIN pg_operator o ON o.oid = a.amopopr WHERE a.amopfamily = c.opcfamily) x(oid)
  JOIN pg_proc f ON f.oid = x.oid
  JOIN pg_roles r ON r.oid = f.proowner AND NOT r.rolsuper
 WHERE format('%%I.%%I', n.nspname, c.opcname) = ANY (%(classes)s)
 ORDER BY 1 LIMIT 5

-- name: written
-- What a write evaluates: the roots, where, the expression as a tree (NULL: the types of columns, which are given), the
-- types that are not built in, whether a role that is not a superuser wrote it, and the function of a trigger.
, tables AS (
    SELECT c.oid, c.oid::regclass::text AS name, NOT coalesce(r.rolsuper, false) AS is_foreign, array_agg(u.root) AS roots,
           -- Who created a trigger is not known: any role that may do so on the table.
           NOT coalesce(r.rolsuper, false) OR EXISTS (
               SELECT FROM aclexplode(c.relacl) g LEFT JOIN pg_roles o ON o.oid = g.grantee
                WHERE g.privilege_type = 'TRIGGER' AND NOT coalesce(o.rolsuper, false)) AS has_foreign_triggers
      FROM used u JOIN pg_class c ON c.oid = u.oid LEFT JOIN pg_roles r ON r.oid = c.relowner WHERE u.is_written
     GROUP BY c.oid, c.relacl, r.rolsuper
)
SELECT t.roots, format('a type of a column of %%s', t.name) AS place, NULL AS tree, x.types, t.is_foreign, NULL::bigint AS function
  FROM tables t CROSS JOIN LATERAL (
       SELECT array_agg(a.atttypid::bigint) AS types FROM pg_attribute a
        WHERE a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid >= 16384) x
 WHERE x.types IS NOT NULL
UNION ALL
SELECT t.roots, format('the constraint %%I of %%s', k.conname, t.name), k.conbin::text, NULL, t.is_foreign, NULL
  FROM tables t JOIN pg_constraint k ON k.conrelid = t.oid WHERE k.conbin IS NOT NULL
UNION ALL
SELECT t.roots, format('the default or generated value of the column %%I of %%s', a.attname, t.name), d.adbin::text, NULL, t.is_foreign, NULL
  FROM tables t JOIN pg_attrdef d ON d.adrelid = t.oid JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = d.adnum
UNION ALL
SELECT t.roots, format('the index %%s', i.indexrelid::regclass), x.tree, NULL, t.is_foreign, NULL
  FROM tables t JOIN pg_index i ON i.indrelid = t.oid CROSS JOIN unnest(ARRAY[i.indexprs::text, i.indpred::text]) x(tree)
 WHERE x.tree IS NOT NULL
UNION ALL
SELECT t.roots, format('the partition key of %%s', t.name), p.partexprs::text, NULL, t.is_foreign, NULL
  FROM tables t JOIN pg_partitioned_table p ON p.partrelid = t.oid WHERE p.partexprs IS NOT NULL
UNION ALL
SELECT t.roots, format('the trigger %%I of %%s', g.tgname, t.name), g.tgqual::text, NULL, t.has_foreign_triggers, g.tgfoid::bigint
  FROM tables t JOIN pg_trigger g ON g.tgrelid = t.oid
 WHERE NOT g.tgisinternal AND g.tgenabled <> 'D' AND (NOT %(silenced)s OR g.tgenabled IN ('A', 'R'))
   AND (NOT %(disabled)s OR EXISTS (SELECT FROM pg_proc f WHERE f.oid = g.tgfoid
            AND (obj_description(f.pronamespace, 'pg_namespace') = 'Tubes of trueup.' OR f.oid = to_regprocedure('trueup.switchover_guard()'))))
 ORDER BY 2

-- name: rules
SELECT t.root, format('the rule %%I of %%s', r.rulename, r.ev_class::regclass)
  FROM roots t JOIN pg_rewrite r ON r.ev_class = t.oid JOIN pg_class c ON c.oid = r.ev_class
  LEFT JOIN pg_roles o ON o.oid = c.relowner
 WHERE r.ev_type <> '1' AND r.ev_enabled <> 'D'
   AND NOT %(disabled)s AND (NOT %(silenced)s OR r.ev_enabled IN ('A', 'R')) AND NOT coalesce(o.rolsuper, false)
 ORDER BY 1, 2

-- name: called
-- The functions of trees, with those that an index over ranges calls, and what calls each: a function, an
-- operator, a type, or a value that is given to any function.
WITH called(by, oid) AS (
    SELECT 'function ' || u.oid, u.oid FROM unnest(%(functions)s::oid[]) u(oid)
    UNION SELECT 'operator ' || u.oid, o.oprcode FROM unnest(%(operators)s::oid[]) u(oid) JOIN pg_operator o ON o.oid = u.oid
    UNION SELECT 'type ' || u.oid, g.rngsubdiff FROM unnest(%(types)s::oid[]) u(oid)
            JOIN pg_range g ON u.oid IN (g.rngtypid, g.rngmultitypid)
    -- Json functions, quote_literal and `anynonarray || text` look up casts themselves.
    UNION SELECT 'value ' || u.oid, k.castfunc FROM unnest(%(types)s::oid[]) u(oid) JOIN pg_cast k ON k.castsource = u.oid
           WHERE k.castmethod = 'f' AND k.casttarget IN ('json'::regtype, 'text'::regtype)
)
SELECT p.oid::regprocedure::text AS signature, p.proname::text AS name, pg_get_userbyid(p.proowner)::text AS owner,
       coalesce(r.rolsuper, false) AS is_of_superuser, p.provolatile = 'v' OR p.prorettype = 'trigger'::regtype AS is_volatile,
       p.oid < 16384 OR EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid
                                   AND d.deptype = 'e') AS is_packaged,
       array_agg(c.by) AS called_by
  FROM called c JOIN pg_proc p ON p.oid = c.oid LEFT JOIN pg_roles r ON r.oid = p.proowner
 GROUP BY p.oid, p.proname, p.proowner, p.provolatile, r.rolsuper
 ORDER BY 1

-- name: fingerprint
-- Another value means that the table, or one that a write to it writes too, may have other code. And these other tables.
SELECT concat_ws('/',
       (SELECT sum(hashtextextended(concat_ws(':', u.oid, u.is_written, c.relowner), 0)) FROM used u JOIN pg_class c ON c.oid = u.oid),
       (SELECT sum(hashtextextended(concat_ws(':', a.attrelid, a.attnum, a.atttypid), 0)) FROM relations u JOIN pg_attribute a ON a.attrelid = u.oid),
       (SELECT sum(hashtextextended(concat_ws(':', g.oid, g.xmin), 0)) FROM relations u JOIN pg_trigger g ON g.tgrelid = u.oid),
       (SELECT sum(hashtextextended(concat_ws(':', r.oid, r.xmin), 0)) FROM relations u JOIN pg_rewrite r ON r.ev_class = u.oid),
       (SELECT sum(hashtextextended(concat_ws(':', k.oid, k.xmin), 0)) FROM relations u JOIN pg_constraint k ON k.conrelid = u.oid),
       (SELECT sum(hashtextextended(concat_ws(':', i.indexrelid, i.xmin), 0)) FROM relations u JOIN pg_index i ON i.indrelid = u.oid),
       (SELECT sum(hashtextextended(concat_ws(':', d.oid, d.xmin), 0)) FROM relations u JOIN pg_attrdef d ON d.adrelid = u.oid),
       (SELECT sum(hashtextextended(concat_ws(':', s.oid, s.xmin), 0)) FROM relations u JOIN pg_statistic_ext s ON s.stxrelid = u.oid),
       -- Checks and defaults of domains.
       (SELECT sum(hashtextextended(concat_ws(':', k.oid, k.xmin), 0)) FROM pg_constraint k WHERE k.conrelid = 0),
       (SELECT sum(hashtextextended(concat_ws(':', t.oid, t.xmin), 0)) FROM pg_type t WHERE t.typtype = 'd')),
       ARRAY(SELECT u.oid::regclass::text FROM relations u WHERE u.is_written AND u.oid NOT IN (SELECT t.oid FROM roots t))

-- name: lock_schema
-- Only a superuser can lock rows of a catalog.
SELECT FROM pg_namespace n WHERE n.nspname = %(schema)s AND n.nspowner NOT IN (SELECT r.oid FROM pg_roles r WHERE r.rolsuper)
   FOR SHARE OF n
