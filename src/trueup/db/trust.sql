-- name: schema
-- One row per problem; one row with NULL if there is none; no row if the schema does not exist.
WITH me AS (
    SELECT r.oid, r.rolsuper FROM pg_roles r WHERE r.rolname = current_user
), roles AS (
    SELECT r.oid, r.rolname FROM pg_roles r, me, pg_database d
     WHERE d.datname = current_database() AND NOT r.rolsuper AND NOT pg_has_role(r.oid, me.oid, 'MEMBER')
       AND (me.rolsuper OR r.oid <> d.datdba AND NOT pg_has_role(me.oid, r.oid, 'MEMBER'))
), s AS (
    SELECT n.* FROM pg_namespace n WHERE n.nspname = %(schema)s
), problems AS (
    SELECT format('it belongs to the role %%s', r.rolname) AS problem FROM s JOIN roles r ON r.oid = s.nspowner
    UNION ALL
    SELECT format('%%s may create objects in it', CASE a.grantee WHEN 0 THEN 'every role' ELSE 'the role ' || r.rolname END)
      FROM s CROSS JOIN aclexplode(s.nspacl) a LEFT JOIN roles r ON r.oid = a.grantee
     WHERE a.privilege_type = 'CREATE' AND (a.grantee = 0 OR r.oid IS NOT NULL) AND a.grantee <> s.nspowner
    UNION ALL
    (SELECT format('%%s belongs to the role %%s', o.name, r.rolname)
       FROM s CROSS JOIN LATERAL (
            SELECT format('the relation %%I', c.relname) AS name, c.relowner AS owner FROM pg_class c WHERE c.relnamespace = s.oid
            UNION ALL SELECT format('the function %%I', p.proname), p.proowner FROM pg_proc p WHERE p.pronamespace = s.oid
            UNION ALL SELECT format('the operator %%s', p.oprname), p.oprowner FROM pg_operator p WHERE p.oprnamespace = s.oid
            UNION ALL SELECT format('the type %%I', t.typname), t.typowner FROM pg_type t
                       WHERE t.typnamespace = s.oid AND t.typrelid = 0 AND t.typcategory <> 'A'
            UNION ALL SELECT format('the function of the trigger %%I of %%I', g.tgname, c.relname), p.proowner
                        FROM pg_class c JOIN pg_trigger g ON g.tgrelid = c.oid JOIN pg_proc p ON p.oid = g.tgfoid
                       WHERE c.relnamespace = s.oid AND NOT g.tgisinternal) o
       JOIN roles r ON r.oid = o.owner
      ORDER BY 1 LIMIT 5)
)
SELECT p.problem FROM s LEFT JOIN problems p ON true

-- name: foreign_code
-- Where, the function, and its owner: for a superuser, functions of roles that are not superusers.
WITH RECURSIVE named AS (
    SELECT c.oid FROM unnest(%(schemas)s::text[], %(tables)s::text[]) x(schema, name)
      JOIN pg_namespace n ON n.nspname = x.schema JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = x.name
), written AS (
    SELECT oid FROM named UNION SELECT t.relid FROM named CROSS JOIN pg_partition_tree(named.oid) t
), types AS (
    SELECT w.oid AS relation, a.atttypid AS oid FROM written w JOIN pg_attribute a ON a.attrelid = w.oid AND a.attnum > 0 AND NOT a.attisdropped
    UNION
    -- The types that a type contains: a domain's base, elements, fields.
    SELECT t.relation, part.oid FROM types t JOIN pg_type y ON y.oid = t.oid CROSS JOIN LATERAL (
           SELECT y.typbasetype WHERE y.typtype = 'd'
           UNION ALL SELECT y.typelem WHERE y.typcategory = 'A'
           UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE r.rngtypid = y.oid
           UNION ALL SELECT f.atttypid FROM pg_attribute f
                      WHERE y.typtype = 'c' AND f.attrelid = y.typrelid AND f.attnum > 0 AND NOT f.attisdropped) part(oid)
), users AS (
    SELECT w.oid AS relation, 'pg_trigger'::regclass AS classid, g.oid AS objid, format('the trigger %%I', g.tgname) AS what
      FROM written w JOIN pg_trigger g ON g.tgrelid = w.oid
     WHERE NOT g.tgisinternal AND g.tgenabled <> 'D' AND (NOT %(silenced)s OR g.tgenabled IN ('A', 'R'))
    UNION ALL
    SELECT w.oid, 'pg_constraint'::regclass, k.oid, format('the constraint %%I', k.conname)
      FROM written w JOIN pg_constraint k ON k.conrelid = w.oid WHERE k.contype IN ('c', 'x')
    UNION ALL
    SELECT t.relation, 'pg_constraint'::regclass, k.oid, format('the constraint %%I of the domain %%s', k.conname, format_type(t.oid, NULL))
      FROM types t JOIN pg_constraint k ON k.contypid = t.oid
    UNION ALL
    SELECT w.oid, 'pg_attrdef'::regclass, d.oid, format('the default or generated value of the column %%I', a.attname)
      FROM written w JOIN pg_attrdef d ON d.adrelid = w.oid JOIN pg_attribute a ON a.attrelid = w.oid AND a.attnum = d.adnum
    UNION ALL
    SELECT w.oid, 'pg_class'::regclass, i.indexrelid, format('the index %%s', i.indexrelid::regclass)
      FROM written w JOIN pg_index i ON i.indrelid = w.oid WHERE i.indexprs IS NOT NULL OR i.indpred IS NOT NULL
    UNION ALL
    SELECT w.oid, 'pg_rewrite'::regclass, r.oid, format('the rule %%I', r.rulename)
      FROM written w JOIN pg_rewrite r ON r.ev_class = w.oid AND r.ev_type <> '1'
)
SELECT DISTINCT format('%%s of %%s', u.what, u.relation::regclass) AS place, f.oid::regprocedure::text, pg_get_userbyid(f.proowner)::text
  FROM users u JOIN pg_depend d ON d.classid = u.classid AND d.objid = u.objid
  LEFT JOIN pg_operator o ON d.refclassid = 'pg_operator'::regclass AND o.oid = d.refobjid
  LEFT JOIN pg_cast k ON d.refclassid = 'pg_cast'::regclass AND k.oid = d.refobjid
  JOIN pg_proc f ON f.oid = CASE WHEN d.refclassid = 'pg_proc'::regclass THEN d.refobjid ELSE coalesce(o.oprcode::oid, k.castfunc) END
  JOIN pg_roles r ON r.oid = f.proowner AND NOT r.rolsuper
 WHERE (SELECT me.rolsuper FROM pg_roles me WHERE me.rolname = current_user)
 ORDER BY 1 LIMIT 5
