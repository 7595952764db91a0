-- name: targets
-- Tables of the target: privileges of the role, what keeps them from being written, and whether they surely have no rows.
WITH RECURSIVE tree AS (
    SELECT c.oid AS root, c.oid FROM pg_class c WHERE c.oid = ANY (%(oids)s::oid[])
    UNION SELECT t.root, i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid
), parts AS (
    SELECT t.root, min(CASE WHEN p.relkind = 'f' THEN p.oid::regclass::text END) AS foreign_part,
           -- Only of the access method heap it is known that all rows are in this file.
           bool_and(p.relkind = 'p' OR p.relkind = 'r' AND p.relam = 2 AND pg_relation_size(p.oid) = 0) AS has_no_pages
      FROM tree t JOIN pg_class p ON p.oid = t.oid GROUP BY t.root
)
SELECT c.oid, n.nspname::text AS schema, c.relname::text AS name,
       has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
           AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE') AS may_write,
       row_security_active(c.oid) AS secured,
       EXISTS (SELECT FROM pg_subscription_rel r WHERE r.srrelid = c.oid) AS is_subscribed,
       p.foreign_part, coalesce(p.has_no_pages, false) AS has_no_pages
  FROM parts p JOIN pg_class c ON c.oid = p.root JOIN pg_namespace n ON n.oid = c.relnamespace
