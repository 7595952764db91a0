-- name: settings
-- ALTER DATABASE ... SET, and ALTER ROLE ... IN DATABASE ... SET; no role: for all roles.
SELECT coalesce(r.rolname::text, '') AS role, s.setconfig AS settings
  FROM pg_db_role_setting s LEFT JOIN pg_roles r ON r.oid = s.setrole
 WHERE s.setdatabase = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
 ORDER BY 1

-- name: privileges
-- The privileges on the database that are not those of its owner; no grantee: all roles.
SELECT coalesce(r.rolname::text, '') AS grantee, a.privilege_type AS privilege, bool_or(a.is_grantable) AS is_grantable
  FROM pg_database d CROSS JOIN aclexplode(coalesce(d.datacl, acldefault('d', d.datdba))) a
  LEFT JOIN pg_roles r ON r.oid = a.grantee
 WHERE d.datname = current_database() AND a.grantee <> d.datdba AND (a.grantee = 0 OR r.rolname IS NOT NULL)
 GROUP BY 1, 2 ORDER BY 1, 2

-- name: owner
SELECT pg_get_userbyid(d.datdba)::text AS owner, pg_has_role(d.datdba, 'USAGE') AS is_owner,
       (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = current_user) AS is_superuser
  FROM pg_database d WHERE d.datname = current_database()
