-- name: indexes
-- Unique and exclusion indexes that are checked at once, of the table and its partitions: the columns that a value of
-- the index depends on (NULL: not known), and whether equal values of these columns are what it excludes;
-- whether it has only some of the rows; and those of the columns that may be NULL.
SELECT CASE WHEN bool_or(a.attgenerated <> '') IS NOT TRUE THEN array_agg(DISTINCT a.attname::text) END AS columns,
       bool_and(i.indexprs IS NULL AND i.indisunique) AS by_value, bool_or(i.indpred IS NOT NULL) AS is_partial,
       coalesce(array_agg(DISTINCT a.attname::text) FILTER (WHERE NOT a.attnotnull), '{}') AS nullable
  FROM pg_index i
  CROSS JOIN LATERAL (
       SELECT k.attnum FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, place) WHERE place <= i.indnkeyatts AND k.attnum > 0
       UNION SELECT d.refobjsubid FROM pg_depend d
              WHERE d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid AND d.refclassid = 'pg_class'::regclass
                AND d.refobjid = i.indrelid AND d.refobjsubid > 0) c(attnum)
  JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = c.attnum
 WHERE i.indimmediate AND (i.indisunique OR i.indisexclusion)
   AND i.indrelid IN (SELECT format('%%I.%%I', %(schema)s::text, %(table)s::text)::regclass UNION ALL
                      SELECT p.relid FROM pg_partition_tree(format('%%I.%%I', %(schema)s::text, %(table)s::text)::regclass) p)
 GROUP BY i.indexrelid

-- name: partition_keys
-- Per partitioned table, of the table and its partitions: the columns of the partition key (NULL: not known).
SELECT CASE WHEN p.partexprs IS NULL THEN
            (SELECT array_agg(a.attname::text) FROM pg_attribute a
              WHERE a.attrelid = p.partrelid AND a.attnum = ANY (p.partattrs::int2[])) END AS columns
  FROM pg_partition_tree(format('%%I.%%I', %(schema)s::text, %(table)s::text)::regclass) t
  JOIN pg_partitioned_table p ON p.partrelid = t.relid
