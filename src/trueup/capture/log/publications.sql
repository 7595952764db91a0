-- name: published
-- Per publication and table: what is published of it. `version` is another text after every alteration, also after one
-- that was taken back: it consists of rows of the catalog with the transactions that wrote them.
SELECT p.pubname::text AS publication, c.oid::int8 AS oid, c.relkind = 'p' AS is_partitioned,
       p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate, p.pubviaroot,
       CASE WHEN s.oid IS NULL AND NOT p.puballtables THEN pg_get_expr(r.prqual, r.prrelid) END AS filter,
       CASE WHEN r.prattrs IS NOT NULL THEN
           (SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum = ANY (r.prattrs::int2[])) END AS columns,
       r.oid IS NOT NULL OR s.oid IS NOT NULL OR p.puballtables AS is_member,
       c.relkind = 'p' AND NOT (p.pubviaroot AND (r.oid IS NOT NULL OR s.oid IS NOT NULL OR p.puballtables)) AND EXISTS (
           SELECT FROM pg_partition_tree(c.oid) t
             JOIN pg_publication_rel x ON x.prrelid = t.relid AND x.prpubid = p.oid
            WHERE x.prqual IS NOT NULL OR x.prattrs IS NOT NULL) AS limits_partitions,
       concat_ws(' ', p.oid, p.xmin, r.oid, r.xmin, s.oid, s.xmin) AS version,
       ARRAY[p.xmax, r.xmax, s.xmax]::text[] AS writers
  FROM pg_publication p
 CROSS JOIN pg_class c
  LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
  LEFT JOIN pg_publication_namespace s ON s.pnpubid = p.oid AND s.pnnspid = c.relnamespace
 WHERE p.pubname = ANY (%(publications)s) AND c.oid = ANY (%(oids)s::oid[])
   AND (r.oid IS NOT NULL OR s.oid IS NOT NULL OR p.puballtables OR c.relkind = 'p' AND EXISTS (
           SELECT FROM pg_partition_tree(c.oid) t JOIN pg_publication_rel x ON x.prrelid = t.relid AND x.prpubid = p.oid))

-- name: published_before_15
-- Without row filters, column lists and schemas, which PostgreSQL 15 introduced.
SELECT p.pubname::text AS publication, c.oid::int8 AS oid, c.relkind = 'p' AS is_partitioned,
       p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate, p.pubviaroot,
       NULL::text AS filter, NULL::text[] AS columns, r.oid IS NOT NULL OR p.puballtables AS is_member,
       false AS limits_partitions,
       concat_ws(' ', p.oid, p.xmin, r.oid, r.xmin) AS version, ARRAY[p.xmax, r.xmax]::text[] AS writers
  FROM pg_publication p
 CROSS JOIN pg_class c
  LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
 WHERE p.pubname = ANY (%(publications)s) AND c.oid = ANY (%(oids)s::oid[])
   AND (r.oid IS NOT NULL OR p.puballtables OR c.relkind = 'p' AND EXISTS (
           SELECT FROM pg_partition_tree(c.oid) t JOIN pg_publication_rel x ON x.prrelid = t.relid AND x.prpubid = p.oid))

-- name: options
SELECT p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate AND p.pubviaroot
  FROM pg_publication p WHERE p.pubname = %(publication)s

-- name: members
-- The tables that a publication names, and whether it publishes all rows and columns of them.
SELECT n.nspname::text, c.relname::text,
       to_jsonb(r) ->> 'prqual' IS NULL AND to_jsonb(r) ->> 'prattrs' IS NULL
  FROM pg_publication p
  JOIN pg_publication_rel r ON r.prpubid = p.oid
  JOIN pg_class c ON c.oid = r.prrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE p.pubname = %(publication)s

-- name: published_for_all
-- Publications FOR ALL TABLES with subscribers, if the table does not exist yet. Slots of trueup use a publication of
-- trueup. A slot without a connected subscriber counts, because its subscriber may be disconnected for a moment.
SELECT p.pubname::text, current_database()::text FROM pg_catalog.pg_publication p
 WHERE p.puballtables AND pg_catalog.to_regclass(%(table)s) IS NULL
   AND EXISTS (SELECT FROM pg_catalog.pg_replication_slots s
                WHERE s.database = current_database() AND s.plugin = 'pgoutput'
                  AND NOT starts_with(s.slot_name::text, 'trueup_'))
 ORDER BY 1

-- name: without_identity
-- Tables of a schema whose rows cannot be updated or deleted once a publication contains them.
SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %(schema)s AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND pg_has_role(c.relowner, 'USAGE')
   AND CASE c.relreplident WHEN 'f' THEN false WHEN 'n' THEN true
            ELSE NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid
                                AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END) END
 ORDER BY 1, 2

-- name: published_by
-- Publications with subscribers that contain the table, which is a table of trueup.
SELECT p.pubname::text, current_database()::text FROM pg_publication_tables p
 WHERE format('%%I.%%I', p.schemaname, p.tablename) = %(table)s
   AND EXISTS (SELECT FROM pg_replication_slots s
                WHERE s.database = current_database() AND s.plugin = 'pgoutput'
                  AND NOT starts_with(s.slot_name::text, 'trueup_'))
 ORDER BY 1

-- name: limited
-- Publications with which rows of tables of trueup cannot be deleted: their column list does not cover the replica identity.
SELECT p.pubname::text, format('%%I.%%I', n.nspname, c.relname)
  FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid AND (p.pubdelete OR p.pubupdate)
  JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = %(schema)s
 WHERE EXISTS (SELECT FROM pg_attribute a
                WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attnum <> ALL (r.prattrs::int2[])
                  AND (c.relreplident = 'f' OR EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary
                                                          AND a.attnum = ANY (i.indkey::int2[]))))
 ORDER BY 1, 2
