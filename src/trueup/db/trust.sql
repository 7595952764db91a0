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
WITH RECURSIVE used AS (
    SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname = %(schema)s AND c.relname = %(table)s
       AND (SELECT me.rolsuper FROM pg_roles me WHERE me.rolname = current_user)
    UNION SELECT i.inhrelid FROM used JOIN pg_inherits i ON i.inhparent = used.oid
), types AS (
    SELECT u.oid AS relation, a.atttypid AS oid FROM used u
      JOIN pg_attribute a ON a.attrelid = u.oid AND a.attnum > 0 AND NOT a.attisdropped WHERE %(writes)s
    UNION
    -- The types that a type contains: the base of a domain, elements, fields.
    SELECT t.relation, part.oid FROM types t JOIN pg_type y ON y.oid = t.oid CROSS JOIN LATERAL (
           SELECT y.typbasetype WHERE y.typtype = 'd'
           UNION ALL SELECT y.typelem WHERE y.typcategory = 'A'
           UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE r.rngtypid = y.oid
           UNION ALL SELECT f.atttypid FROM pg_attribute f
                      WHERE y.typtype = 'c' AND f.attrelid = y.typrelid AND f.attnum > 0 AND NOT f.attisdropped) part(oid)
), users AS (
    SELECT u.oid AS relation, 'pg_class'::regclass AS classid, i.indexrelid AS objid, format('the index %%s', i.indexrelid::regclass) AS what
      FROM used u JOIN pg_index i ON i.indrelid = u.oid WHERE i.indexprs IS NOT NULL OR i.indpred IS NOT NULL
    UNION ALL
    SELECT u.oid, 'pg_class'::regclass, u.oid, 'the partition key' FROM used u JOIN pg_partitioned_table p ON p.partrelid = u.oid
    UNION ALL
    SELECT u.oid, 'pg_statistic_ext'::regclass, s.oid, format('the statistics object %%I', s.stxname)
      FROM used u JOIN pg_statistic_ext s ON s.stxrelid = u.oid
    UNION ALL
    SELECT u.oid, 'pg_constraint'::regclass, k.oid, format('the constraint %%I', k.conname)
      FROM used u JOIN pg_constraint k ON k.conrelid = u.oid WHERE k.contype IN ('c', 'x')
    UNION ALL
    SELECT u.oid, 'pg_trigger'::regclass, g.oid, format('the trigger %%I', g.tgname)
      FROM used u JOIN pg_trigger g ON g.tgrelid = u.oid
     WHERE %(writes)s AND NOT g.tgisinternal AND g.tgenabled <> 'D' AND (NOT %(silenced)s OR g.tgenabled IN ('A', 'R'))
    UNION ALL
    SELECT t.relation, 'pg_constraint'::regclass, k.oid, format('the constraint %%I of the domain %%s', k.conname, format_type(t.oid, NULL))
      FROM types t JOIN pg_constraint k ON k.contypid = t.oid
    UNION ALL
    SELECT u.oid, 'pg_attrdef'::regclass, d.oid, format('the default or generated value of the column %%I', a.attname)
      FROM used u JOIN pg_attrdef d ON d.adrelid = u.oid JOIN pg_attribute a ON a.attrelid = u.oid AND a.attnum = d.adnum
     WHERE %(writes)s
    UNION ALL
    SELECT u.oid, 'pg_rewrite'::regclass, r.oid, format('the rule %%I', r.rulename)
      FROM used u JOIN pg_rewrite r ON r.ev_class = u.oid AND r.ev_type <> '1' WHERE %(writes)s
)
SELECT DISTINCT format('%%s of %%s', u.what, u.relation::regclass) AS place, f.oid::regprocedure::text, pg_get_userbyid(f.proowner)::text
  FROM users u JOIN pg_depend d ON d.classid = u.classid AND d.objid = u.objid
  LEFT JOIN pg_operator o ON d.refclassid = 'pg_operator'::regclass AND o.oid = d.refobjid
  JOIN pg_proc f ON f.oid = CASE WHEN d.refclassid = 'pg_proc'::regclass THEN d.refobjid ELSE o.oprcode::oid END
  JOIN pg_roles r ON r.oid = f.proowner AND NOT r.rolsuper
 ORDER BY 1 LIMIT 5
