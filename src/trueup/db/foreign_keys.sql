-- name: has_foreign_keys
-- Whether the statement below may return rows, in a fifth of its time.
SELECT EXISTS (SELECT FROM pg_constraint c WHERE c.contype = 'f' AND c.conparentid = 0)

-- name: foreign_keys
-- The foreign keys of a database, without the copies of partitions; for each end the relation, and the table at the top.
WITH RECURSIVE keys AS (
    -- Without keys that are not enforced (PostgreSQL 18).
    SELECT c.* FROM pg_constraint c
     WHERE c.contype = 'f' AND c.conparentid = 0 AND coalesce((to_jsonb(c) ->> 'conenforced')::bool, true)
), up AS (
    SELECT k.oid, k.root FROM (SELECT conrelid, conrelid FROM keys UNION SELECT confrelid, confrelid FROM keys) k(oid, root)
    UNION ALL
    SELECT u.oid, i.inhparent FROM up u JOIN pg_class c ON c.oid = u.root AND c.relispartition
      JOIN pg_inherits i ON i.inhrelid = u.root
), roots AS (
    SELECT u.oid, n.nspname, c.relname FROM up u JOIN pg_class c ON c.oid = u.root AND NOT c.relispartition
      JOIN pg_namespace n ON n.oid = c.relnamespace
), below AS (
    SELECT t.oid AS start, t.typbasetype AS oid FROM pg_type t WHERE t.typtype = 'd'
    UNION ALL
    SELECT b.start, t.typbasetype FROM below b JOIN pg_type t ON t.oid = b.oid WHERE t.typtype = 'd'
), bases AS (
    -- Quoted, with the schema.
    SELECT x.start, '"' || replace(n.nspname, '"', '""') || '"."' || replace(t.typname, '"', '""') || '"' AS name
      FROM (SELECT start, oid FROM below UNION ALL SELECT oid, oid FROM pg_type) x
      JOIN pg_type t ON t.oid = x.oid JOIN pg_namespace n ON n.oid = t.typnamespace WHERE t.typtype <> 'd'
)
SELECT c.conname::text AS name,
       cn.nspname::text AS child_schema, cc.relname::text AS child_table,
       pn.nspname::text AS parent_schema, pc.relname::text AS parent_table,
       cr.nspname::text AS child_root_schema, cr.relname::text AS child_root,
       pr.nspname::text AS parent_root_schema, pr.relname::text AS parent_root,
       (SELECT array_agg(a.attname::text ORDER BY k.ord) FROM unnest(c.conkey) WITH ORDINALITY k(attnum, ord)
          JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.attnum) AS child_columns,
       (SELECT array_agg(a.attname::text ORDER BY k.ord) FROM unnest(c.confkey) WITH ORDINALITY k(attnum, ord)
          JOIN pg_attribute a ON a.attrelid = c.confrelid AND a.attnum = k.attnum) AS parent_columns,
       (SELECT array_agg(format('OPERATOR(%%I.%%s)', n.nspname, o.oprname) ORDER BY k.ord)
          FROM unnest(c.conpfeqop) WITH ORDINALITY k(oid, ord)
          JOIN pg_operator o ON o.oid = k.oid JOIN pg_namespace n ON n.oid = o.oprnamespace) AS operators,
       (SELECT array_agg(b.name ORDER BY k.ord) FROM unnest(c.conkey) WITH ORDINALITY k(attnum, ord)
          JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.attnum
          JOIN bases b ON b.start = a.atttypid) AS child_types,
       (SELECT array_agg(b.name ORDER BY k.ord) FROM unnest(c.confkey) WITH ORDINALITY k(attnum, ord)
          JOIN pg_attribute a ON a.attrelid = c.confrelid AND a.attnum = k.attnum
          JOIN bases b ON b.start = a.atttypid) AS parent_types,
       c.condeferrable AS deferrable, c.convalidated AS validated, c.confmatchtype = 'f' AS match_full,
       c.confdeltype::text AS on_delete, c.confupdtype::text AS on_update,
       NOT EXISTS (SELECT FROM unnest(c.conkey) k(attnum)
                     JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.attnum
                    WHERE a.attnotnull) AS nullable,
       coalesce((to_jsonb(c) ->> 'conperiod')::bool, false) AS period
  FROM keys c
  JOIN roots cr ON cr.oid = c.conrelid JOIN roots pr ON pr.oid = c.confrelid
  JOIN pg_class cc ON cc.oid = c.conrelid JOIN pg_namespace cn ON cn.oid = cc.relnamespace
  JOIN pg_class pc ON pc.oid = c.confrelid JOIN pg_namespace pn ON pn.oid = pc.relnamespace
 ORDER BY 2, 3, 1
