-- name: memberships
-- What each role is a member of, directly or through others, and whether it may SET ROLE to it. A superuser needs none. On PostgreSQL
-- 16 and newer a membership without both INHERIT and SET has no effect: the creator of a role gets such a one.
WITH RECURSIVE direct AS (
    SELECT a.member, a.roleid, coalesce((to_jsonb(a) ->> 'set_option')::boolean, true) AS can_set
      FROM pg_auth_members a
     WHERE coalesce((to_jsonb(a) ->> 'inherit_option')::boolean, true) OR coalesce((to_jsonb(a) ->> 'set_option')::boolean, true)
), members AS (
    SELECT d.member, d.roleid, d.can_set FROM direct d
    UNION
    SELECT m.member, d.roleid, m.can_set AND d.can_set FROM members m JOIN direct d ON d.member = m.roleid
)
SELECT r.rolname::text, x.rolname::text, bool_or(m.can_set) FROM members m
  JOIN pg_roles r ON r.oid = m.member AND NOT r.rolsuper AND r.rolname !~ '^pg_'
  JOIN pg_roles x ON x.oid = m.roleid
 GROUP BY 1, 2

-- name: attributes
-- Every role, so that a missing one is known, and what it may do in the whole database or on the server.
SELECT r.rolname::text, array_remove(ARRAY[
    CASE WHEN r.rolsuper THEN 'do everything (SUPERUSER)' END,
    CASE WHEN r.rolbypassrls THEN 'bypass row security (BYPASSRLS)' END,
    CASE WHEN r.rolcreaterole THEN 'create roles (CREATEROLE)' END,
    CASE WHEN r.rolcreatedb THEN 'create databases (CREATEDB)' END,
    CASE WHEN r.rolreplication THEN 'replicate (REPLICATION)' END,
    CASE WHEN has_database_privilege(r.oid, current_database(), 'CONNECT') THEN 'CONNECT' END,
    CASE WHEN r.rolcanlogin THEN 'log in' END], NULL)
  FROM pg_roles r

-- name: objects
-- What each role may do with these tables, views and sequences, also through other roles: on which objects, and on which of them not
-- every role may. Column privileges count for tables that have some. The owner passes row security that is not forced.
WITH objects AS (
    SELECT format('%%I.%%I', x.s, x.n) AS name, c.oid, c.relnamespace, c.relkind, c.relowner, c.relforcerowsecurity, x.is_secured,
           EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attacl IS NOT NULL) AS has_columns
      FROM unnest(%(schemas)s::text[], %(names)s::text[], %(secured)s::boolean[]) x(s, n, is_secured)
      JOIN pg_class c ON c.oid = to_regclass(format('%%I.%%I', x.s, x.n))
), roles AS (
    SELECT r.oid, r.rolname::text AS role, r.rolbypassrls OR r.rolsuper AS bypasses FROM pg_roles r WHERE r.rolname !~ '^pg_'
), usable AS (
    SELECT r.oid AS role_oid, r.role, r.bypasses, o.* FROM roles r CROSS JOIN objects o WHERE has_schema_privilege(r.oid, o.relnamespace, 'USAGE')
), rights AS (
    SELECT u.role, p.privilege, u.name, NOT has_sequence_privilege('public', u.oid, p.privilege) AS is_beyond
      FROM usable u CROSS JOIN unnest(ARRAY['USAGE', 'SELECT', 'UPDATE']) p(privilege)
     WHERE CASE WHEN u.relkind = 'S' THEN has_sequence_privilege(u.role_oid, u.oid, p.privilege) END
    UNION ALL
    SELECT u.role, p.privilege, u.name, NOT has_table_privilege('public', u.oid, p.privilege)
      FROM usable u CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) p(privilege)
     WHERE u.relkind <> 'S' AND has_table_privilege(u.role_oid, u.oid, p.privilege)
    UNION ALL
    SELECT u.role, p.privilege || ' columns of', u.name, NOT has_any_column_privilege('public', u.oid, p.privilege)
      FROM usable u CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'REFERENCES']) p(privilege)
     WHERE u.relkind <> 'S' AND u.has_columns AND has_any_column_privilege(u.role_oid, u.oid, p.privilege)
    UNION ALL
    SELECT u.role, 'read all rows of', u.name, true FROM usable u
     WHERE u.is_secured AND has_table_privilege(u.role_oid, u.oid, 'SELECT')
       AND (u.bypasses OR NOT u.relforcerowsecurity AND pg_has_role(u.role_oid, u.relowner, 'USAGE'))
)
SELECT role, privilege, array_agg(name), coalesce(array_agg(name) FILTER (WHERE is_beyond), '{}') FROM rights GROUP BY role, privilege
