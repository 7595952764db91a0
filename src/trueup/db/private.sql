-- name: objects
-- The schema, its relations and its functions: catalog and OID.
SELECT 'pg_namespace', n.oid::bigint FROM pg_namespace n WHERE n.nspname = %(schema)s
UNION ALL SELECT 'pg_class', c.oid::bigint FROM pg_class c WHERE c.relnamespace = to_regnamespace(quote_ident(%(schema)s))
UNION ALL SELECT 'pg_proc', p.oid::bigint FROM pg_proc p WHERE p.pronamespace = to_regnamespace(quote_ident(%(schema)s))

-- name: granted
-- Catalog, OID, and the statement that takes away each privilege of a role other than the owner. EXECUTE matters only for
-- functions that run with the rights of their owner.
SELECT o.catalog, o.oid::bigint, format('REVOKE ALL ON %%s %%s FROM %%s', o.kind, o.name,
                                CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END)
  FROM (SELECT 'pg_namespace' AS catalog, n.oid, 'SCHEMA' AS kind, quote_ident(n.nspname) AS name, n.nspacl AS acl, n.nspowner AS owner
          FROM pg_namespace n WHERE n.nspname = %(schema)s
        UNION ALL
        SELECT 'pg_class', c.oid, CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END,
               format('%%I.%%I', n.nspname, c.relname), c.relacl, c.relowner
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE n.nspname = %(schema)s AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
        UNION ALL
        SELECT 'pg_proc', p.oid, 'FUNCTION',
               format('%%I.%%I(%%s)', n.nspname, p.proname, pg_get_function_identity_arguments(p.oid)),
               coalesce(p.proacl, acldefault('f', p.proowner)), p.proowner
          FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
         WHERE n.nspname = %(schema)s AND p.prosecdef) o,
       LATERAL (SELECT DISTINCT x.grantee FROM aclexplode(o.acl) x) a
 WHERE a.grantee <> o.owner
