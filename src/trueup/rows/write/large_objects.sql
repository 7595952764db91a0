-- name: objects
-- One row per large object: owner, privileges, size, and a hash of the content, which is read in pieces. The seed comes
-- first: pieces that were made to have the same md5 would keep it if the seed followed them.
SELECT m.oid::bigint AS oid, pg_get_userbyid(m.lomowner)::text AS owner, s.size,
       (SELECT string_agg(x."grant", ',' ORDER BY x."grant" COLLATE "C")
          FROM (SELECT concat_ws(' ', CASE WHEN a.grantee = 0 THEN '' ELSE pg_get_userbyid(a.grantee)::text END,
                                 a.privilege_type, a.is_grantable)
                  FROM aclexplode(coalesce(m.lomacl, acldefault('L', m.lomowner))) a) x("grant")) AS acl,
       (SELECT md5(string_agg(md5({seed}::text::bytea || lo_get(m.oid, p.at, {piece})), '' ORDER BY p.at))
          FROM generate_series(0, s.size - 1, {piece}) p(at)) AS content,
       lo_close(f.fd + CASE WHEN s.size < 0 THEN 1 ELSE 0 END) AS closed
  FROM pg_largeobject_metadata m
 CROSS JOIN LATERAL (SELECT lo_open(m.oid, 262144) AS fd OFFSET 0) f
 -- It depends on the number of the object: all descriptors are 0, and the server would keep the size of the first object
 -- for the others (Memoize).
 CROSS JOIN LATERAL (SELECT lo_lseek64(f.fd, 0 * m.oid::bigint, 2) AS size OFFSET 0) s
 WHERE m.oid = ANY({among})

-- name: digest
SELECT count(*), coalesce(sum(hashtextextended(concat_ws('/', o.oid, o.owner, o.size, o.acl, o.content), {seed})), 0)::text
  FROM ({objects}) o

-- name: list
SELECT o.oid, concat_ws('/', o.owner, o.size, o.acl, o.content), o.owner, o.size FROM ({objects}) o ORDER BY o.oid

-- name: privileges
SELECT CASE WHEN a.grantee = 0 THEN '' ELSE pg_get_userbyid(a.grantee)::text END, a.privilege_type, a.is_grantable
  FROM pg_largeobject_metadata m, aclexplode(coalesce(m.lomacl, acldefault('L', m.lomowner))) a WHERE m.oid = %s

-- name: exists
SELECT EXISTS (SELECT FROM pg_largeobject_metadata WHERE oid = %s)

-- name: create
SELECT lo_create(%s::oid)

-- name: unlink
SELECT lo_unlink(%s::oid)

-- name: read
SELECT lo_get(%s::oid, %s, %s)

-- name: write
SELECT lo_put(%s::oid, %s, %s)

-- name: truncate
SELECT lo_truncate64(lo_open(%s::oid, 131072), %s)

-- name: owners
-- The owners of large objects whose rights this role does not have.
SELECT DISTINCT r.rolname::text FROM pg_largeobject_metadata m JOIN pg_roles r ON r.oid = m.lomowner
 WHERE NOT pg_has_role(m.lomowner, 'USAGE') ORDER BY 1

-- name: roles
-- The roles that own large objects, or have privileges on them.
SELECT r.rolname::text, bool_or(x.owns)
  FROM (SELECT m.lomowner, true FROM pg_largeobject_metadata m
        UNION ALL SELECT a.grantee, false FROM pg_largeobject_metadata m CROSS JOIN aclexplode(m.lomacl) a) x(role, owns)
  JOIN pg_roles r ON r.oid = x.role GROUP BY 1 ORDER BY 1

-- name: unusable
-- The roles of these names that do not exist here, and the owners that this role cannot make the owner of an object.
SELECT n.name, n.own, r.oid IS NOT NULL
  FROM unnest(%(names)s::text[], %(own)s::bool[]) n(name, own) LEFT JOIN pg_roles r ON r.rolname = n.name
 WHERE r.oid IS NULL OR n.own AND NOT (pg_has_role(r.oid, 'USAGE') AND pg_has_role(r.oid, %(privilege)s)) ORDER BY 1

-- name: numbers
SELECT oid::bigint FROM pg_largeobject_metadata ORDER BY 1
