-- name: equality
-- Per column of the key, in its order: the operator by which a unique index over exactly these columns compares them.
-- No row if equal values have equal texts anyway, if there is no such index, or if this role could not rename a key.
WITH k AS (
    SELECT i.indexrelid, i.indrelid, u.attnum, i.indclass[u.place - 1] AS class, i.indcollation[u.place - 1] AS collation
      FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY u(attnum, place)
     WHERE i.indexrelid = (
           SELECT x.indexrelid FROM pg_index x
            WHERE x.indrelid = format('%%I.%%I', %(schema)s::text, %(table)s::text)::regclass
              AND x.indisunique AND x.indisvalid AND x.indexprs IS NULL AND x.indpred IS NULL
              AND (SELECT array_agg(a.attname::text ORDER BY a.attname::text COLLATE "C")
                     FROM unnest((x.indkey::int2[])[0:x.indnkeyatts - 1]) c(attnum)
                     JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = c.attnum)
                = (SELECT array_agg(n ORDER BY n COLLATE "C") FROM unnest(%(key)s::text[]) n)
            ORDER BY x.indisprimary DESC, 1 LIMIT 1)
       AND u.place <= i.indnkeyatts
)
SELECT format('OPERATOR(%%I.%%s)', n.nspname, o.oprname) AS operator
  FROM k JOIN pg_attribute a ON a.attrelid = k.indrelid AND a.attnum = k.attnum
  JOIN pg_opclass c ON c.oid = k.class
  JOIN pg_amop m ON m.amopfamily = c.opcfamily AND m.amoplefttype = c.opcintype AND m.amoprighttype = c.opcintype AND m.amopstrategy = 3
  JOIN pg_operator o ON o.oid = m.amopopr JOIN pg_namespace n ON n.oid = o.oprnamespace
 WHERE has_table_privilege(k.indrelid, 'UPDATE') AND has_database_privilege(current_database(), 'TEMP')
   AND EXISTS (
       SELECT FROM k e JOIN pg_attribute b ON b.attrelid = e.indrelid AND b.attnum = e.attnum
         JOIN pg_opclass d ON d.oid = e.class LEFT JOIN pg_collation l ON l.oid = e.collation
        WHERE d.opcintype NOT IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype, 'oid'::regtype, 'uuid'::regtype,
              'bool'::regtype, 'bytea'::regtype, 'date'::regtype, 'timestamp'::regtype, 'timestamptz'::regtype,
              'text'::regtype, 'name'::regtype) OR NOT coalesce(l.collisdeterministic, true))
 ORDER BY array_position(%(key)s::text[], a.attname::text)
