-- name: default_privileges
-- Statements that take back what default privileges of this role gave to the objects that this transaction created.
WITH objects AS (
    SELECT 'pg_class'::regclass AS classid, c.oid, CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END AS kind,
           format('%I.%I', n.nspname, c.relname) AS name, c.relacl AS acl,
           acldefault(CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", c.relowner) AS usual
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f') AND c.xmin = pg_current_xact_id()::xid
    UNION ALL
    SELECT 'pg_proc'::regclass, p.oid, 'ROUTINE', p.oid::regprocedure::text, p.proacl, acldefault('f', p.proowner)
      FROM pg_proc p WHERE p.xmin = pg_current_xact_id()::xid
    UNION ALL
    SELECT 'pg_type'::regclass, t.oid, 'TYPE', format('%I.%I', n.nspname, t.typname), t.typacl, acldefault('T', t.typowner)
      FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
     WHERE t.xmin = pg_current_xact_id()::xid AND t.typrelid = 0 AND t.typelem = 0
    UNION ALL
    SELECT 'pg_namespace'::regclass, n.oid, 'SCHEMA', format('%I', n.nspname), n.nspacl, acldefault('n', n.nspowner)
      FROM pg_namespace n WHERE n.xmin = pg_current_xact_id()::xid AND n.nspname <> 'public'
), own AS (
    SELECT o.* FROM objects o
     WHERE o.acl IS NOT NULL
       AND EXISTS (SELECT FROM pg_default_acl a WHERE a.defaclrole = (SELECT r.oid FROM pg_roles r WHERE r.rolname = current_user))
       AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = o.classid AND d.objid = o.oid AND d.deptype = 'e')
), given AS (
    SELECT o.kind, o.name, a.grantee, a.privilege_type FROM own o CROSS JOIN aclexplode(o.acl) a
), usual AS (
    SELECT o.kind, o.name, a.grantee, a.privilege_type FROM own o CROSS JOIN aclexplode(o.usual) a
)
SELECT format('%s %s ON %s %s %s %s', x.word, x.privilege_type, x.kind, x.name, x.preposition,
              CASE x.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(x.grantee)) END)
  FROM (SELECT 'REVOKE' AS word, 'FROM' AS preposition, r.* FROM (TABLE given EXCEPT TABLE usual) r
        UNION ALL SELECT 'GRANT', 'TO', r.* FROM (TABLE usual EXCEPT TABLE given) r) x
 ORDER BY 1
