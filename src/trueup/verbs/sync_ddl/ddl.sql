-- name: definitions
-- Tables by oid, as statements need them: all names have their schema, because search_path is pg_catalog.
SELECT c.oid::bigint AS oid, n.nspname::text AS schema, c.relname::text AS name, c.relkind::text AS kind,
       pg_get_userbyid(c.relowner)::text AS owner, c.relispartition AS is_partition, pg_get_partkeydef(c.oid) AS partition_key,
       -- Printed with commas between them, as arguments are.
       ARRAY(SELECT format('num_nulls(%%s) > 0', pg_get_expr(k.partexprs, k.partrelid)) FROM pg_partitioned_table k
              WHERE k.partrelid = c.oid AND k.partexprs IS NOT NULL) AS partition_expressions,
       ARRAY(SELECT format('%%I.%%I', xn.nspname, x.opcname)
               FROM (SELECT unnest(i.indclass::oid[]) FROM pg_index i WHERE i.indrelid = c.oid
                     UNION SELECT unnest(k.partclass::oid[]) FROM pg_partitioned_table k
                      WHERE k.partrelid IN (
                          WITH RECURSIVE t(oid) AS (
                              SELECT c.oid UNION SELECT h.inhrelid FROM t JOIN pg_inherits h ON h.inhparent = t.oid)
                          SELECT t.oid FROM t)) used(oid)
               JOIN pg_opclass x ON x.oid = used.oid AND x.oid >= 16384
               JOIN pg_namespace xn ON xn.oid = x.opcnamespace ORDER BY 1) AS classes,
       (SELECT coalesce(jsonb_agg(jsonb_build_object(
                   'number', a.attnum, 'name', a.attname, 'type', format_type(a.atttypid, a.atttypmod),
                   'base', format_type(a.atttypid, NULL), 'not_null', a.attnotnull, 'identity', a.attidentity,
                   'generated', a.attgenerated,
                   'collation', CASE WHEN a.attcollation <> t.typcollation THEN (
                       SELECT format('%%I.%%I', cn.nspname, co.collname) FROM pg_collation co
                         JOIN pg_namespace cn ON cn.oid = co.collnamespace WHERE co.oid = a.attcollation) END,
                   'expression', pg_get_expr(d.adbin, d.adrelid),
                   'options', (SELECT format('SEQUENCE NAME %%s START %%s INCREMENT %%s MINVALUE %%s MAXVALUE %%s CACHE %%s%%s', s.seqrelid::regclass,
                                             s.seqstart, s.seqincrement, s.seqmin, s.seqmax, s.seqcache,
                                             CASE WHEN s.seqcycle THEN ' CYCLE' ELSE '' END)
                                 FROM pg_depend o JOIN pg_sequence s ON s.seqrelid = o.objid
                                WHERE a.attidentity <> '' AND o.classid = 'pg_class'::regclass AND o.deptype = 'i'
                                  AND o.refclassid = 'pg_class'::regclass AND o.refobjid = c.oid AND o.refobjsubid = a.attnum)
               ) ORDER BY a.attnum), '[]')
          FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
          LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS columns,
       (SELECT coalesce(jsonb_agg(jsonb_build_object(
                   'name', k.conname, 'kind', k.contype, 'validated', k.convalidated,
                   'columns', ARRAY(SELECT o.refobjsubid FROM pg_depend o WHERE o.classid = 'pg_constraint'::regclass AND o.objid = k.oid
                                       AND o.refclassid = 'pg_class'::regclass AND o.refobjid = c.oid AND o.refobjsubid > 0),
                   'expressions', CASE WHEN k.contype = 'c' THEN jsonb_build_array(pg_get_expr(k.conbin, k.conrelid))
                                  ELSE coalesce(e.texts, '[]') END,
                   'definition', regexp_replace(pg_get_constraintdef(k.oid), ' NOT VALID$', ''))
                   -- Keys before the foreign keys that refer to them.
                   ORDER BY strpos('puxcf', k.contype::text), k.conname), '[]')
          FROM pg_constraint k
          LEFT JOIN LATERAL (
               SELECT jsonb_agg(x.text) AS texts FROM pg_index i CROSS JOIN LATERAL (
                      SELECT pg_get_indexdef(i.indexrelid, n, false) FROM generate_series(1, i.indnkeyatts::int) n WHERE i.indkey[n - 1] = 0
                      UNION ALL SELECT pg_get_expr(i.indpred, i.indrelid) WHERE i.indpred IS NOT NULL) x(text)
                WHERE k.contype = 'x' AND i.indexrelid = k.conindid) e ON true
         WHERE k.conrelid = c.oid AND k.contype IN ('p', 'u', 'x', 'c', 'f') AND k.conparentid = 0
           AND k.conislocal) AS constraints,
       (SELECT coalesce(jsonb_agg(jsonb_build_object('name', x.relname, 'definition', pg_get_indexdef(i.indexrelid),
                   'columns', ARRAY(SELECT o.refobjsubid FROM pg_depend o WHERE o.classid = 'pg_class'::regclass AND o.objid = x.oid
                                       AND o.refclassid = 'pg_class'::regclass AND o.refobjid = c.oid AND o.refobjsubid > 0),
                   -- Without its name.
                   'shape', replace(pg_get_indexdef(i.indexrelid), format(' INDEX %%I ON ', x.relname), ' INDEX ON '),
                   'expressions', (SELECT coalesce(jsonb_agg(e.text), '[]') FROM (
                       SELECT pg_get_indexdef(i.indexrelid, n, false) FROM generate_series(1, i.indnkeyatts::int) n WHERE i.indkey[n - 1] = 0
                       UNION ALL SELECT pg_get_expr(i.indpred, i.indrelid) WHERE i.indpred IS NOT NULL) e(text)))
                        ORDER BY x.relname), '[]')
          FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
         WHERE i.indrelid = c.oid AND i.indisvalid
           AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid AND k.contype IN ('p', 'u', 'x')))
           AS indexes,
       (WITH RECURSIVE tree AS (
            SELECT i.inhrelid, i.inhparent, 1 AS level FROM pg_inherits i WHERE i.inhparent = c.oid AND NOT i.inhdetachpending
            UNION ALL
            SELECT i.inhrelid, i.inhparent, t.level + 1 FROM tree t JOIN pg_inherits i ON i.inhparent = t.inhrelid
             WHERE NOT i.inhdetachpending)
        SELECT coalesce(jsonb_agg(jsonb_build_object(
                   'oid', p.oid::bigint, 'condition', pg_get_partition_constraintdef(p.oid), 'schema', pn.nspname, 'name', p.relname, 'kind', p.relkind, 'bound', pg_get_expr(p.relpartbound, p.oid),
                   'key', pg_get_partkeydef(p.oid),
                   'expressions', ARRAY(SELECT format('num_nulls(%%s) > 0', pg_get_expr(k.partexprs, k.partrelid))
                                          FROM pg_partitioned_table k WHERE k.partrelid = p.oid AND k.partexprs IS NOT NULL),
                   'owner', pg_get_userbyid(p.relowner),
                   'parent_schema', qn.nspname, 'parent', q.relname) ORDER BY t.level, p.relname), '[]')
          FROM tree t JOIN pg_class p ON p.oid = t.inhrelid JOIN pg_namespace pn ON pn.oid = p.relnamespace
          JOIN pg_class q ON q.oid = t.inhparent JOIN pg_namespace qn ON qn.oid = q.relnamespace
         WHERE p.relispartition) AS partitions,
       (SELECT coalesce(jsonb_agg(jsonb_build_object('schema', sn.nspname, 'name', s.relname, 'column', a.attname)
                        ORDER BY s.relname), '[]')
          FROM pg_depend o JOIN pg_sequence q ON q.seqrelid = o.objid JOIN pg_class s ON s.oid = q.seqrelid
          JOIN pg_namespace sn ON sn.oid = s.relnamespace
          JOIN pg_attribute a ON a.attrelid = o.refobjid AND a.attnum = o.refobjsubid
         WHERE o.classid = 'pg_class'::regclass AND o.deptype = 'a' AND o.refclassid = 'pg_class'::regclass
           AND o.refobjid = c.oid AND o.refobjsubid > 0) AS sequences,
       (SELECT coalesce(jsonb_agg(jsonb_build_object('privilege', g.privilege_type, 'option', g.is_grantable,
                   'role', CASE WHEN g.grantee <> 0 THEN pg_get_userbyid(g.grantee) END)), '[]')
          FROM aclexplode(c.relacl) g WHERE g.grantee <> c.relowner) AS grants
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = ANY(%(oids)s::oid[]) AND c.relkind IN ('r', 'p')

-- name: schemas
SELECT n.nspname::text AS name, pg_get_userbyid(n.nspowner)::text AS owner,
       (SELECT coalesce(jsonb_agg(jsonb_build_object('privilege', g.privilege_type, 'option', g.is_grantable,
                   'role', CASE WHEN g.grantee <> 0 THEN pg_get_userbyid(g.grantee) END)), '[]')
          FROM aclexplode(n.nspacl) g WHERE g.grantee <> n.nspowner) AS grants
  FROM pg_namespace n

-- name: roles
SELECT rolname::text FROM pg_roles WHERE rolname = ANY(%(names)s)

-- name: taken
-- Which of these quoted names a relation has.
SELECT n.name FROM unnest(%(names)s::text[]) n(name) WHERE to_regclass(n.name) IS NOT NULL

-- name: sequences
SELECT n.nspname::text, c.relname::text,
       format('AS %s START %s INCREMENT %s MINVALUE %s MAXVALUE %s CACHE %s%s', format_type(q.seqtypid, NULL), q.seqstart,
              q.seqincrement, q.seqmin, q.seqmax, q.seqcache, CASE WHEN q.seqcycle THEN ' CYCLE' ELSE ' NO CYCLE' END)
  FROM pg_sequence q JOIN pg_class c ON c.oid = q.seqrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 -- The sequence of an identity is made with its column.
 WHERE NOT EXISTS (SELECT FROM pg_depend o WHERE o.classid = 'pg_class'::regclass AND o.objid = c.oid AND o.deptype = 'i'
                      AND o.refclassid = 'pg_class'::regclass AND o.refobjsubid > 0)
 ORDER BY 1, 2

-- name: labels
-- The labels of enums, by their names.
SELECT n.nspname::text, t.typname::text, ARRAY(SELECT e.enumlabel::text FROM pg_enum e WHERE e.enumtypid = t.oid ORDER BY e.enumsortorder)
  FROM unnest(%(schemas)s::text[], %(names)s::text[]) w(schema, name)
  JOIN pg_namespace n ON n.nspname = w.schema JOIN pg_type t ON t.typnamespace = n.oid AND t.typname = w.name AND t.typtype = 'e'
