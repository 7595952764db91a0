-- name: leaves
-- The tables that store rows: a plain table, or the leaf partitions of a partitioned one. Read in the snapshot.
SELECT r.root::bigint, c.oid::bigint, n.nspname::text, c.relname::text, pg_relation_filenode(c.oid)::bigint,
       pg_relation_size(c.oid) / current_setting('block_size')::bigint,
       pg_table_size(c.oid), coalesce(a.amname = 'heap', false)
  FROM unnest(%(oids)s::oid[]) r(root)
  CROSS JOIN LATERAL (SELECT r.root AS oid WHERE NOT EXISTS (SELECT FROM pg_class p WHERE p.oid = r.root AND p.relkind = 'p')
                      UNION ALL SELECT t.relid FROM pg_partition_tree(r.root) t WHERE t.isleaf) l
  JOIN pg_class c ON c.oid = l.oid AND c.relkind = 'r'
  JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_am a ON a.oid = c.relam
 ORDER BY 7 DESC, 2

-- name: done
SELECT relation::bigint, file::bigint, first_page, end_page FROM trueup.copied WHERE sync = %s

-- name: rows
UPDATE trueup.copied SET rows = %s WHERE sync = %s AND relation = %s AND file = %s AND first_page = %s
