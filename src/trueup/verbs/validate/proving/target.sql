-- name: members
-- The tables that hold the rows of a table: itself, or its partitions; and the columns that identify rows in the log (NULL: none).
SELECT r.oid::regclass::text AS name, r.relpersistence::text AS persistence, r.relreplident::text AS identity,
       (SELECT array_agg(a.attname::text)
          FROM pg_index i
          CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, place)
          JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
         WHERE i.indrelid = r.oid AND k.place <= i.indnkeyatts
           AND CASE r.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END) AS columns,
       (SELECT h.inhrelid::regclass::text FROM pg_inherits h WHERE h.inhparent = r.oid LIMIT 1) AS heir
  FROM (SELECT %(oid)s::oid AS relid UNION SELECT relid::oid FROM pg_partition_tree(%(oid)s::oid)) m
  JOIN pg_class r ON r.oid = m.relid
 WHERE r.relkind = 'r'

-- name: may_write_more
-- Whether triggers run when a subscription applies changes: they may write other rows in its transactions.
SELECT EXISTS (SELECT FROM pg_trigger g JOIN pg_class c ON c.oid = g.tgrelid
                WHERE g.tgenabled IN ('A', 'R') AND c.relnamespace <> 'pg_catalog'::regnamespace)

-- name: by_row
-- The tables whose changes statement triggers do not see: those that another subscription than the syncer fills, and partitions.
SELECT t.oid
  FROM unnest(%(oids)s::oid[]) t(oid)
 WHERE EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = t.oid)
    OR EXISTS (SELECT FROM pg_subscription_rel r
                WHERE r.srsubid <> ALL (%(syncers)s::oid[])
                  AND (r.srrelid = t.oid OR r.srrelid IN (SELECT relid FROM pg_partition_tree(t.oid))))
