-- name: used
-- The roles of the source that own objects of this database or are named in privileges, policies and settings, and the
-- members of these roles. Objects of extensions belong to the role that creates the extension. Large objects count if
-- they are copied.
WITH RECURSIVE db AS (
    SELECT d.oid, d.datdba FROM pg_database d WHERE d.datname = current_database()
), spaces AS (
    SELECT n.oid FROM pg_namespace n
     WHERE n.nspname = ANY (%(ours)s) OR obj_description(n.oid, 'pg_namespace') = 'Tubes of trueup.'
), hidden AS (
    SELECT d.classid, d.objid FROM pg_depend d WHERE d.deptype = 'e'
    UNION ALL SELECT 'pg_class'::regclass, c.oid FROM pg_class c WHERE c.relnamespace IN (SELECT s.oid FROM spaces s)
    UNION ALL SELECT 'pg_proc'::regclass, p.oid FROM pg_proc p WHERE p.pronamespace IN (SELECT s.oid FROM spaces s)
    UNION ALL SELECT 'pg_type'::regclass, t.oid FROM pg_type t WHERE t.typnamespace IN (SELECT s.oid FROM spaces s)
    UNION ALL SELECT 'pg_namespace'::regclass, s.oid FROM spaces s
), refs AS (
    SELECT d.refobjid AS role, d.deptype = 'o' AS owns, d.classid, d.objid, d.deptype
      FROM pg_shdepend d, db
     WHERE d.refclassid = 'pg_authid'::regclass AND d.deptype IN ('o', 'a', 'r') AND d.dbid = db.oid
       AND d.classid NOT IN ('pg_publication'::regclass, 'pg_extension'::regclass)
       AND (%(large_objects)s OR d.classid <> 'pg_largeobject'::regclass)
    UNION ALL
    SELECT d.refobjid, false, d.classid, d.objid, d.deptype FROM pg_shdepend d, db
     WHERE d.refclassid = 'pg_authid'::regclass AND d.dbid = 0 AND d.classid = 'pg_database'::regclass AND d.objid = db.oid
       AND d.deptype = 'a'
    UNION ALL
    -- The first superuser is needed by everything: its objects and privileges are not recorded.
    SELECT 10, true, 'pg_class'::regclass, c.oid, 'o' FROM pg_class c WHERE c.relowner = 10 AND c.oid >= 16384
       AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
    -- It owns the functions of every range type.
    UNION ALL SELECT 10, true, 'pg_proc'::regclass, p.oid, 'o' FROM pg_proc p WHERE p.proowner = 10 AND p.oid >= 16384
       AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'i')
    UNION ALL SELECT 10, true, 'pg_type'::regclass, t.oid, 'o' FROM pg_type t
               WHERE t.typowner = 10 AND t.oid >= 16384 AND t.typrelid = 0 AND t.typelem = 0
    UNION ALL SELECT 10, true, 'pg_namespace'::regclass, n.oid, 'o' FROM pg_namespace n
               WHERE n.nspowner = 10 AND n.oid >= 16384 AND n.nspname !~ '^pg_'
    UNION ALL SELECT 10, true, 'pg_largeobject'::regclass, m.oid, 'o' FROM pg_largeobject_metadata m
               WHERE m.lomowner = 10 AND %(large_objects)s
    UNION ALL SELECT 10, false, 'pg_class'::regclass, c.oid, 'a' FROM pg_class c
               WHERE c.oid >= 16384 AND c.relowner <> 10 AND EXISTS (SELECT FROM aclexplode(c.relacl) a WHERE a.grantee = 10)
    UNION ALL SELECT 10, false, 'pg_namespace'::regclass, n.oid, 'a' FROM pg_namespace n
               WHERE n.nspowner <> 10 AND n.oid >= 16384 AND EXISTS (SELECT FROM aclexplode(n.nspacl) a WHERE a.grantee = 10)
    UNION ALL SELECT s.setrole, false, 'pg_db_role_setting'::regclass, 0, 's' FROM pg_db_role_setting s, db
               WHERE s.setdatabase = db.oid AND s.setrole <> 0
), direct AS (
    SELECT r.role, count(*) FILTER (WHERE r.owns) AS owned,
           (array_agg(ARRAY[r.classid::bigint, r.objid::bigint] ORDER BY r.classid, r.objid) FILTER (WHERE r.owns))[1:3] AS some
      FROM refs r LEFT JOIN hidden h ON h.classid = r.classid AND h.objid = r.objid
     WHERE h.objid IS NULL OR r.deptype = 'a' AND r.classid <> 'pg_namespace'::regclass
               AND EXISTS (SELECT FROM pg_depend e WHERE e.classid = r.classid AND e.objid = r.objid AND e.deptype = 'e')
     GROUP BY 1
), used(role) AS (
    SELECT d.role FROM direct d
    UNION
    -- A superuser needs no membership.
    SELECT m.member FROM used u JOIN pg_auth_members m ON m.roleid = u.role
      JOIN pg_roles r ON r.oid = m.member AND NOT r.rolsuper
)
SELECT r.rolname::text AS name, coalesce(d.owned, 0) AS owned,
       ARRAY(SELECT pg_describe_object(d.some[g][1]::oid, d.some[g][2]::oid, 0) FROM generate_series(1, cardinality(d.some) / 2) g) AS objects,
       r.rolsuper AS superuser, r.rolinherit AS inherit,
       r.rolcreaterole AS createrole, r.rolcreatedb AS createdb, r.rolcanlogin AS login,
       r.rolreplication AS replication, r.rolbypassrls AS bypassrls, r.rolconnlimit AS connection_limit,
       r.rolvaliduntil::text AS valid_until,
       coalesce((SELECT s.setconfig FROM pg_db_role_setting s WHERE s.setrole = r.oid AND s.setdatabase = 0), '{}') AS settings
  FROM used u JOIN pg_roles r ON r.oid = u.role LEFT JOIN direct d ON d.role = u.role
 WHERE r.rolname !~ '^pg_'
 ORDER BY 1

-- name: passwords
SELECT a.rolname::text, a.rolpassword FROM pg_authid a WHERE a.rolname = ANY (%(names)s) AND a.rolpassword IS NOT NULL

-- name: memberships
-- Role, member, whether the member may grant it; on PostgreSQL 16 and newer also its other options.
SELECT p.rolname::text AS role, m.rolname::text AS member, bool_or(a.admin_option) AS admin,
       bool_or(coalesce((to_jsonb(a) ->> 'inherit_option')::boolean, m.rolinherit)) AS inherit,
       bool_or(coalesce((to_jsonb(a) ->> 'set_option')::boolean, true)) AS can_set
  FROM pg_auth_members a JOIN pg_roles p ON p.oid = a.roleid JOIN pg_roles m ON m.oid = a.member
 WHERE m.rolname = ANY (%(names)s) AND (p.rolname = ANY (%(names)s) OR p.rolname ~ '^pg_')
 GROUP BY 1, 2 ORDER BY 1, 2

-- name: present
-- The roles of the target, and what the current role may do with them.
SELECT r.rolname::text AS name, r.rolsuper AS superuser, r.rolcreaterole AS createrole, r.rolcreatedb AS createdb,
       r.rolcanlogin AS login, r.rolreplication AS replication, r.rolbypassrls AS bypassrls,
       pg_has_role(r.oid, 'USAGE') AS is_inherited, pg_has_role(r.oid, 'MEMBER') AS is_member,
       pg_has_role(r.oid, 'MEMBER WITH ADMIN OPTION') AS may_grant, r.rolname = current_user AS is_current
  FROM pg_roles r ORDER BY 1

-- name: may_set
-- PostgreSQL 16 and newer: the roles that the current role may set, and so make the owner of an object.
SELECT r.rolname::text FROM pg_roles r WHERE pg_has_role(r.oid, 'SET')

-- name: others
-- Roles that may connect to this database, and have nothing in it.
SELECT r.rolname::text FROM pg_roles r
 WHERE r.rolcanlogin AND NOT r.rolsuper AND r.rolname !~ '^pg_' AND NOT r.rolname = ANY (%(names)s)
   AND r.rolname <> current_user AND has_database_privilege(r.oid, current_database(), 'CONNECT')
 ORDER BY 1

-- name: definers
-- What runs with the rights of its owner: SECURITY DEFINER functions, and views over tables whose rows or privileges
-- depend on the role.
SELECT pg_get_userbyid(p.proowner)::text AS owner, format('function %%s', p.oid::regprocedure) AS name
  FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
 WHERE p.prosecdef AND p.oid >= 16384 AND NOT n.nspname = ANY (%(ours)s)
   AND coalesce(obj_description(n.oid, 'pg_namespace'), '') <> 'Tubes of trueup.'
   AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')
UNION
SELECT pg_get_userbyid(v.relowner)::text, format('view %%s', v.oid::regclass)
  FROM pg_class v JOIN pg_rewrite r ON r.ev_class = v.oid
  JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid AND d.refclassid = 'pg_class'::regclass
  JOIN pg_class t ON t.oid = d.refobjid AND t.oid <> v.oid
 WHERE v.relkind IN ('v', 'm') AND v.oid >= 16384 AND (t.relrowsecurity OR t.relowner <> v.relowner) AND t.oid >= 16384
   AND NOT EXISTS (SELECT FROM pg_options_to_table(v.reloptions) o
                    WHERE o.option_name = 'security_invoker' AND o.option_value::boolean)
   AND NOT EXISTS (SELECT FROM pg_depend e WHERE e.classid = 'pg_class'::regclass AND e.objid = v.oid AND e.deptype = 'e')
 ORDER BY 1, 2

-- name: granted_by_others
-- Privileges that another role than the owner granted: only a superuser can restore them.
SELECT DISTINCT format('%%s', x.shown) FROM (
    SELECT c.oid::regclass::text AS shown, c.relowner AS owner, a.grantor FROM pg_class c CROSS JOIN aclexplode(c.relacl) a
     WHERE c.oid >= 16384
    UNION ALL SELECT p.oid::regprocedure::text, p.proowner, a.grantor FROM pg_proc p CROSS JOIN aclexplode(p.proacl) a
     WHERE p.oid >= 16384
    UNION ALL SELECT 'schema ' || n.nspname, n.nspowner, a.grantor FROM pg_namespace n CROSS JOIN aclexplode(n.nspacl) a
     WHERE n.oid >= 16384
) x WHERE x.owner <> x.grantor ORDER BY 1

-- name: schemas_of
-- Which roles own objects in which schemas: a role without superuser rights can make only those roles the owner of an
-- object that may create objects in its schema.
SELECT DISTINCT n.nspname::text AS schema, pg_get_userbyid(x.owner)::text AS owner FROM (
    SELECT c.relnamespace AS space, c.relowner AS owner, 'pg_class'::regclass AS classid, c.oid FROM pg_class c
     WHERE c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
    UNION ALL SELECT p.pronamespace, p.proowner, 'pg_proc'::regclass, p.oid FROM pg_proc p
    UNION ALL SELECT t.typnamespace, t.typowner, 'pg_type'::regclass, t.oid FROM pg_type t WHERE t.typrelid = 0
) x JOIN pg_namespace n ON n.oid = x.space
 WHERE x.oid >= 16384 AND n.nspname !~ '^pg_' AND NOT n.nspname = ANY (%(ours)s)
   AND coalesce(obj_description(n.oid, 'pg_namespace'), '') <> 'Tubes of trueup.'
   AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = x.classid AND d.objid = x.oid AND d.deptype = 'e')
 ORDER BY 1, 2
