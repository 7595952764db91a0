-- name: schema
-- One row per problem; one row with NULL if there is none; no row if the schema does not exist.
WITH me AS (
    -- Code can go back from the role that was set to the one that logged in.
    SELECT r.oid, (SELECT bool_or(l.rolsuper) FROM pg_roles l WHERE l.rolname IN (current_user, session_user)) AS rolsuper
      FROM pg_roles r WHERE r.rolname = current_user
), roles AS (
    SELECT r.oid, r.rolname FROM pg_roles r, me, pg_database d
     WHERE d.datname = current_database() AND NOT r.rolsuper AND NOT pg_has_role(r.oid, me.oid, 'MEMBER')
       -- The only member of this role is the owner of the database.
       AND NOT (r.rolname = 'pg_database_owner' AND (SELECT o.rolsuper FROM pg_roles o WHERE o.oid = d.datdba))
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
