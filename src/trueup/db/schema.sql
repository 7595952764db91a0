-- The server prints everything with `search_path = pg_catalog`, so every name has its schema and no oid is included.
-- Columns of every statement that reads objects: kind, schema, home (schema and name of the table it belongs to), parts
-- (of the name), arguments (of functions), facts.

-- name: server
SELECT current_setting('server_version_num')::int / 10000 AS version, current_setting('search_path') AS path

-- name: spaces
-- Without schemas of the system and of extensions, the schemas `trueup` and `trueup_app`, and schemas in which tubes are installed.
SELECT n.oid::bigint AS oid, n.nspname::text AS name
  FROM pg_namespace n
 WHERE n.nspname !~ '^pg_' AND n.nspname NOT IN ('information_schema', 'trueup', 'trueup_app')
   AND NOT EXISTS (SELECT FROM pg_depend d
                    WHERE d.classid = 'pg_namespace'::regclass AND d.objid = n.oid AND d.deptype = 'e')
   AND NOT EXISTS (SELECT FROM pg_class c
                    WHERE c.relnamespace = n.oid AND c.relname = 'installation'
                      AND obj_description(c.oid, 'pg_class') LIKE '%%version of trueup tube%%')
   AND (%(schemas)s::text[] IS NULL OR n.nspname = ANY (%(schemas)s::text[]))

-- name: relations
-- Tables, views and sequences; an owned sequence has the table that owns it.
SELECT c.oid::bigint AS oid, coalesce(home.nspname, n.nspname)::text AS schema,
       coalesce(owner.relname, c.relname)::text AS "table"
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_depend o ON c.relkind = 'S' AND o.classid = 'pg_class'::regclass AND o.objid = c.oid AND o.objsubid = 0
                       AND o.refclassid = 'pg_class'::regclass AND o.refobjsubid > 0 AND o.deptype IN ('a', 'i')
  LEFT JOIN pg_class owner ON owner.oid = o.refobjid
  LEFT JOIN pg_namespace home ON home.oid = owner.relnamespace
 WHERE c.relnamespace = ANY (%(spaces)s::oid[]) AND c.relkind IN ('r', 'p', 'f', 'v', 'm', 'S')
   AND NOT EXISTS (SELECT FROM pg_depend d
                    WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')

-- name: schemas
SELECT 'schema' AS kind, '' AS schema, NULL::text[] AS home, ARRAY[n.nspname::text] AS parts, NULL AS arguments,
       '{}'::jsonb AS facts
  FROM pg_namespace n WHERE n.oid = ANY (%(spaces)s::oid[])

-- name: tables
SELECT 'table' AS kind, n.nspname::text AS schema, ARRAY[n.nspname::text, c.relname::text] AS home, ARRAY[c.relname::text] AS parts,
       NULL AS arguments,
       jsonb_build_object(
           'kind', CASE c.relkind WHEN 'p' THEN 'partitioned table' WHEN 'f' THEN 'foreign table' ELSE 'table' END,
           'persistence', CASE c.relpersistence WHEN 'u' THEN 'unlogged' WHEN 't' THEN 'temporary' ELSE 'permanent' END,
           'partition by', pg_get_partkeydef(c.oid),
           'expressions', (SELECT jsonb_build_array(pg_get_expr(k.partexprs, k.partrelid)) FROM pg_partitioned_table k
                            WHERE k.partrelid = c.oid AND k.partexprs IS NOT NULL),
           'inherits', (SELECT jsonb_agg(format('%%I.%%I', pn.nspname, p.relname) ORDER BY h.inhseqno)
                          FROM pg_inherits h JOIN pg_class p ON p.oid = h.inhparent
                          JOIN pg_namespace pn ON pn.oid = p.relnamespace WHERE h.inhrelid = c.oid),
           'partition', pg_get_expr(c.relpartbound, c.oid),
           'of type', CASE WHEN c.reloftype <> 0 THEN format_type(c.reloftype, NULL) END,
           'access method', (SELECT a.amname FROM pg_am a WHERE a.oid = c.relam),
           'options', (SELECT jsonb_agg(o ORDER BY o COLLATE "C")
                         FROM (SELECT unnest(c.reloptions)
                               UNION ALL SELECT 'toast.' || unnest(t.reloptions) FROM pg_class t
                                          WHERE t.oid = c.reltoastrelid) each(o)),
           'server', (SELECT s.srvname FROM pg_foreign_table f JOIN pg_foreign_server s ON s.oid = f.ftserver
                       WHERE f.ftrelid = c.oid),
           'server options', (SELECT to_jsonb(f.ftoptions) FROM pg_foreign_table f WHERE f.ftrelid = c.oid),
           'row security', c.relrowsecurity,
           'forced row security', c.relforcerowsecurity,
           'replica identity',
           CASE c.relreplident WHEN 'd' THEN 'default' WHEN 'n' THEN 'nothing' WHEN 'f' THEN 'full'
                ELSE 'index ' || (SELECT i.relname FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid
                                   WHERE x.indrelid = c.oid AND x.indisreplident) END,
           'column order', (SELECT jsonb_agg(a.attname ORDER BY a.attnum) FROM pg_attribute a
                             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
           'clustered on', (SELECT x.relname FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
                             WHERE i.indrelid = c.oid AND i.indisclustered)
       ) AS facts
  FROM unnest(%(relations)s::oid[]) wanted(oid)
  JOIN pg_class c USING (oid)
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p', 'f')

-- name: columns
SELECT 'column' AS kind, n.nspname::text AS schema, ARRAY[n.nspname::text, c.relname::text] AS home,
       ARRAY[c.relname::text, a.attname::text] AS parts, NULL AS arguments,
       jsonb_build_object(
           'type', format_type(a.atttypid, a.atttypmod),
           'collation', CASE WHEN a.attcollation <> t.typcollation THEN
                (SELECT format('%%I.%%I', cn.nspname, co.collname) FROM pg_collation co
                   JOIN pg_namespace cn ON cn.oid = co.collnamespace WHERE co.oid = a.attcollation) END,
           'not null', a.attnotnull,
           -- Since PostgreSQL 18, a NOT NULL constraint may not be validated.
           'not null is validated',
           NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = a.attrelid AND k.contype = 'n'
                          AND k.conkey = ARRAY[a.attnum] AND NOT k.convalidated),
           'not null is inherited',
           NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = a.attrelid AND k.contype = 'n'
                          AND k.conkey = ARRAY[a.attnum] AND k.connoinherit),
           'default', CASE WHEN a.attgenerated = '' THEN pg_get_expr(d.adbin, d.adrelid) END,
           'identity', CASE a.attidentity WHEN 'a' THEN 'always' WHEN 'd' THEN 'by default' END,
           'generated', CASE a.attgenerated WHEN 's' THEN 'stored: ' WHEN 'v' THEN 'virtual: ' END
                        || pg_get_expr(d.adbin, d.adrelid),
           'storage', CASE WHEN a.attstorage <> t.typstorage THEN
                CASE a.attstorage WHEN 'p' THEN 'plain' WHEN 'e' THEN 'external' WHEN 'm' THEN 'main'
                     WHEN 'x' THEN 'extended' END END,
           'compression', CASE a.attcompression WHEN 'p' THEN 'pglz' WHEN 'l' THEN 'lz4' END,
           -- NULL is the default since PostgreSQL 17, before it was -1.
           'statistics target', nullif(a.attstattarget, -1),
           'options', (SELECT jsonb_agg(o ORDER BY o COLLATE "C") FROM unnest(a.attoptions) each(o)),
           'foreign options', (SELECT jsonb_agg(o ORDER BY o COLLATE "C") FROM unnest(a.attfdwoptions) each(o))
       ) AS facts
  FROM unnest(%(relations)s::oid[]) wanted(oid)
  JOIN pg_class c USING (oid)
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  JOIN pg_type t ON t.oid = a.atttypid
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE c.relkind IN ('r', 'p', 'f')

-- name: constraints
-- Without NOT NULL (a fact of the column), triggers, and the copies of foreign keys on partitions, which follow from the
-- partitioned table and whose names depend on the version.
SELECT 'constraint' AS kind, n.nspname::text AS schema, ARRAY[n.nspname::text, c.relname::text] AS home,
       ARRAY[c.relname::text, k.conname::text] AS parts, NULL AS arguments,
       jsonb_build_object(
           'definition', regexp_replace(pg_get_constraintdef(k.oid), ' NOT VALID$', ''),
           'validated', k.convalidated,
           'index', pg_get_indexdef(i.indexrelid),
           'expressions', (SELECT jsonb_agg(e.text ORDER BY e.place) FROM (
                SELECT g, pg_get_indexdef(i.indexrelid, g, false) FROM generate_series(1, i.indnkeyatts::int) g WHERE i.indkey[g - 1] = 0
                UNION ALL SELECT i.indnkeyatts + 1, pg_get_expr(i.indpred, i.indrelid) WHERE i.indpred IS NOT NULL) e(place, text)),
           'index is valid', i.indisvalid,
           -- ALTER TABLE ... DISABLE TRIGGER ALL: the constraint is not enforced any more.
           'disabled', EXISTS (SELECT FROM pg_trigger t WHERE t.tgconstraint = k.oid AND t.tgenabled IN ('D', 'R'))
       ) AS facts
  FROM unnest(%(relations)s::oid[]) wanted(oid)
  JOIN pg_class c USING (oid)
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_constraint k ON k.conrelid = c.oid
  LEFT JOIN pg_index i ON i.indexrelid = k.conindid AND k.contype IN ('p', 'u', 'x')
 WHERE k.contype NOT IN ('n', 't') AND NOT (k.contype = 'f' AND k.conparentid <> 0)

-- name: indexes
-- Without the indexes of keys, which are facts of their constraints.
SELECT 'index' AS kind, n.nspname::text AS schema, ARRAY[n.nspname::text, c.relname::text] AS home, ARRAY[x.relname::text] AS parts,
       NULL AS arguments,
       jsonb_build_object(
           'definition', pg_get_indexdef(i.indexrelid),
           'valid', i.indisvalid AND i.indisready,
           'expressions', (SELECT jsonb_agg(e.text ORDER BY e.place) FROM (
                SELECT k, pg_get_indexdef(i.indexrelid, k, false) FROM generate_series(1, i.indnkeyatts::int) k WHERE i.indkey[k - 1] = 0
                UNION ALL SELECT i.indnkeyatts + 1, pg_get_expr(i.indpred, i.indrelid) WHERE i.indpred IS NOT NULL) e(place, text)),
           'statistics targets', (SELECT jsonb_object_agg(a.attnum, a.attstattarget) FROM pg_attribute a
                                   WHERE a.attrelid = i.indexrelid AND a.attstattarget <> -1),
           'part of', (SELECT format('%%I.%%I', pn.nspname, p.relname) FROM pg_inherits h
                         JOIN pg_class p ON p.oid = h.inhparent JOIN pg_namespace pn ON pn.oid = p.relnamespace
                        WHERE h.inhrelid = i.indexrelid)
       ) AS facts
  FROM unnest(%(relations)s::oid[]) wanted(oid)
  JOIN pg_class c USING (oid)
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_index i ON i.indrelid = c.oid
  JOIN pg_class x ON x.oid = i.indexrelid
 WHERE NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid AND k.contype IN ('p', 'u', 'x'))

-- name: sequences
SELECT 'sequence' AS kind, n.nspname::text AS schema, CASE WHEN owner.oid IS NOT NULL THEN ARRAY[home.nspname::text, owner.relname::text] END AS home, ARRAY[c.relname::text] AS parts,
       NULL AS arguments,
       jsonb_build_object(
           'type', format_type(s.seqtypid, NULL), 'start', s.seqstart, 'increment', s.seqincrement, 'minimum', s.seqmin,
           'maximum', s.seqmax, 'cycle', s.seqcycle, 'cache', s.seqcache,
           'persistence', CASE c.relpersistence WHEN 'u' THEN 'unlogged' WHEN 't' THEN 'temporary' ELSE 'permanent' END,
           'owned by', CASE WHEN owner.oid IS NOT NULL THEN format('%%I.%%I.%%I', home.nspname, owner.relname, a.attname) END
       ) AS facts
  FROM unnest(%(relations)s::oid[]) wanted(oid)
  JOIN pg_class c USING (oid)
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_sequence s ON s.seqrelid = c.oid
  LEFT JOIN pg_depend o ON o.classid = 'pg_class'::regclass AND o.objid = c.oid AND o.objsubid = 0
                       AND o.refclassid = 'pg_class'::regclass AND o.refobjsubid > 0 AND o.deptype IN ('a', 'i')
  LEFT JOIN pg_class owner ON owner.oid = o.refobjid
  LEFT JOIN pg_namespace home ON home.oid = owner.relnamespace
  LEFT JOIN pg_attribute a ON a.attrelid = o.refobjid AND a.attnum = o.refobjsubid

-- name: views
SELECT CASE c.relkind WHEN 'm' THEN 'materialized view' ELSE 'view' END AS kind, n.nspname::text AS schema,
       ARRAY[n.nspname::text, c.relname::text] AS home, ARRAY[c.relname::text] AS parts, NULL AS arguments,
       jsonb_build_object(
           'definition', pg_get_viewdef(c.oid),
           'columns', (SELECT jsonb_agg(format('%%I %%s', a.attname, format_type(a.atttypid, a.atttypmod)) ORDER BY a.attnum)
                         FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
           'defaults', (SELECT jsonb_object_agg(a.attname, pg_get_expr(d.adbin, d.adrelid)) FROM pg_attrdef d
                          JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum WHERE d.adrelid = c.oid),
           'options', (SELECT jsonb_agg(o ORDER BY o COLLATE "C") FROM unnest(c.reloptions) each(o)),
           'populated', c.relispopulated,
           'access method', (SELECT a.amname FROM pg_am a WHERE a.oid = c.relam),
           'clustered on', (SELECT x.relname FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
                             WHERE i.indrelid = c.oid AND i.indisclustered),
           'column settings', (SELECT jsonb_object_agg(a.attname, concat_ws(' ', 'storage', a.attstorage,
                                                       'compression', a.attcompression,
                                                       'statistics', coalesce(a.attstattarget, -1), a.attoptions::text))
                                 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND c.relkind = 'm')
       ) AS facts
  FROM unnest(%(relations)s::oid[]) wanted(oid)
  JOIN pg_class c USING (oid)
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('v', 'm')

-- name: triggers
-- Copies on partitions only if they were enabled or disabled separately. Without the triggers of tubes.
SELECT 'trigger' AS kind, n.nspname::text AS schema, ARRAY[n.nspname::text, c.relname::text] AS home,
       ARRAY[c.relname::text, t.tgname::text] AS parts, NULL AS arguments,
       jsonb_build_object(
           'definition', pg_get_triggerdef(t.oid),
           'enabled', CASE t.tgenabled WHEN 'O' THEN 'yes' WHEN 'D' THEN 'no' WHEN 'R' THEN 'replica' WHEN 'A' THEN 'always' END
       ) AS facts
  FROM unnest(%(relations)s::oid[]) wanted(oid)
  JOIN pg_class c USING (oid)
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_trigger t ON t.tgrelid = c.oid
  JOIN pg_proc p ON p.oid = t.tgfoid
  LEFT JOIN pg_constraint k ON k.oid = t.tgconstraint
  LEFT JOIN pg_trigger parent ON parent.oid = t.tgparentid
 WHERE (k.oid IS NULL OR k.contype = 't')
   AND CASE WHEN parent.oid IS NULL THEN NOT t.tgisinternal ELSE t.tgenabled <> parent.tgenabled END
   AND p.pronamespace <> ALL (%(ours)s::oid[])

-- name: ours
SELECT n.oid::bigint AS oid FROM pg_namespace n
 WHERE n.nspname IN ('trueup', 'trueup_app')
    OR EXISTS (SELECT FROM pg_class c
                WHERE c.relnamespace = n.oid AND c.relname = 'installation'
                  AND obj_description(c.oid, 'pg_class') LIKE '%%version of trueup tube%%')

-- name: policies
SELECT 'policy' AS kind, n.nspname::text AS schema, ARRAY[n.nspname::text, c.relname::text] AS home,
       ARRAY[c.relname::text, p.polname::text] AS parts, NULL AS arguments,
       jsonb_build_object(
           'command', CASE p.polcmd WHEN 'r' THEN 'SELECT' WHEN 'a' THEN 'INSERT' WHEN 'w' THEN 'UPDATE'
                           WHEN 'd' THEN 'DELETE' ELSE 'ALL' END,
           'permissive', p.polpermissive,
           'roles', (SELECT jsonb_agg(coalesce(r.rolname::text, 'public') ORDER BY r.rolname)
                       FROM unnest(p.polroles) each(oid) LEFT JOIN pg_roles r ON r.oid = each.oid),
           'using', pg_get_expr(p.polqual, p.polrelid),
           'with check', pg_get_expr(p.polwithcheck, p.polrelid)
       ) AS facts
  FROM unnest(%(relations)s::oid[]) wanted(oid)
  JOIN pg_class c USING (oid)
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_policy p ON p.polrelid = c.oid

-- name: rules
SELECT 'rule' AS kind, n.nspname::text AS schema, ARRAY[n.nspname::text, c.relname::text] AS home,
       ARRAY[c.relname::text, r.rulename::text] AS parts, NULL AS arguments,
       jsonb_build_object(
           'definition', pg_get_ruledef(r.oid),
           'enabled', CASE r.ev_enabled WHEN 'O' THEN 'yes' WHEN 'D' THEN 'no' WHEN 'R' THEN 'replica' WHEN 'A' THEN 'always' END
       ) AS facts
  FROM unnest(%(relations)s::oid[]) wanted(oid)
  JOIN pg_class c USING (oid)
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_rewrite r ON r.ev_class = c.oid AND r.rulename <> '_RETURN'

-- name: statistics
SELECT 'statistics' AS kind, n.nspname::text AS schema, ARRAY[home.nspname::text, c.relname::text] AS home, ARRAY[s.stxname::text] AS parts,
       NULL AS arguments,
       jsonb_build_object('definition', pg_get_statisticsobjdef(s.oid),
                          'expressions', to_jsonb(pg_get_statisticsobjdef_expressions(s.oid)),
                          'statistics target', nullif(s.stxstattarget, -1)) AS facts
  FROM unnest(%(relations)s::oid[]) wanted(oid)
  JOIN pg_class c USING (oid)
  JOIN pg_namespace home ON home.oid = c.relnamespace
  JOIN pg_statistic_ext s ON s.stxrelid = c.oid
  JOIN pg_namespace n ON n.oid = s.stxnamespace

-- name: functions
-- By name and argument types, without the constructors of range types. A body in standard SQL is not stored as text and is printed with its head.
SELECT CASE p.prokind WHEN 'p' THEN 'procedure' WHEN 'a' THEN 'aggregate' ELSE 'function' END AS kind,
       n.nspname::text AS schema, NULL::text[] AS home, ARRAY[p.proname::text] AS parts,
       coalesce((SELECT string_agg(format_type(each.oid, NULL), ', ' ORDER BY each.number)
                   FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY each(oid, number)), '') AS arguments,
       jsonb_build_object(
           'language', l.lanname,
           'arguments', pg_get_function_arguments(p.oid),
           'expressions', CASE WHEN p.pronargdefaults > 0 THEN (
                SELECT jsonb_agg(d.text ORDER BY d.number)
                  FROM (SELECT g, pg_get_function_arg_default(p.oid, g)
                          FROM generate_series(1, coalesce(cardinality(p.proallargtypes), p.pronargs)) g) d(number, text)
                 WHERE d.text IS NOT NULL) END,
           'returns', pg_get_function_result(p.oid),
           'body', CASE WHEN p.prokind = 'a' THEN NULL
                        WHEN l.lanname = 'sql' AND p.prosrc = '' THEN pg_get_functiondef(p.oid) ELSE p.prosrc END,
           'library', p.probin,
           'window', p.prokind = 'w',
           'volatility', CASE p.provolatile WHEN 'i' THEN 'immutable' WHEN 's' THEN 'stable' ELSE 'volatile' END,
           'strict', p.proisstrict,
           'leakproof', p.proleakproof,
           'security definer', p.prosecdef,
           'parallel', CASE p.proparallel WHEN 's' THEN 'safe' WHEN 'r' THEN 'restricted' ELSE 'unsafe' END,
           'cost', p.procost,
           'rows', p.prorows,
           'settings', (SELECT jsonb_agg(o ORDER BY o COLLATE "C") FROM unnest(p.proconfig) each(o)),
           'support', nullif(p.prosupport::text, '-'),
           'aggregate', (
               SELECT jsonb_build_object(
                          'kind', a.aggkind, 'direct arguments', a.aggnumdirectargs,
                          'functions', ARRAY[a.aggtransfn::text, a.aggfinalfn::text, a.aggcombinefn::text,
                                             a.aggserialfn::text, a.aggdeserialfn::text, a.aggmtransfn::text,
                                             a.aggminvtransfn::text, a.aggmfinalfn::text],
                          'final', ARRAY[a.aggfinalextra::text, a.aggmfinalextra::text,
                                         a.aggfinalmodify::text, a.aggmfinalmodify::text],
                          'state', format_type(a.aggtranstype, NULL), 'space', a.aggtransspace,
                          'moving state', format_type(nullif(a.aggmtranstype, 0), NULL), 'moving space', a.aggmtransspace,
                          'start', a.agginitval, 'moving start', a.aggminitval,
                          'sort operator', nullif(a.aggsortop, 0)::regoperator::text)
                 FROM pg_aggregate a WHERE a.aggfnoid = p.oid)
       ) AS facts
  FROM pg_proc p
  JOIN pg_namespace n ON n.oid = p.pronamespace
  JOIN pg_language l ON l.oid = p.prolang
 WHERE p.pronamespace = ANY (%(spaces)s::oid[])
   AND NOT EXISTS (SELECT FROM pg_depend d
                    WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype IN ('e', 'i'))

-- name: types
-- Without row types of tables, arrays and multiranges, which follow from other objects, and types created by ranges.
SELECT 'type' AS kind, n.nspname::text AS schema, NULL::text[] AS home, ARRAY[t.typname::text] AS parts, NULL AS arguments,
       jsonb_build_object(
           'kind', CASE t.typtype WHEN 'e' THEN 'enum' WHEN 'c' THEN 'composite' WHEN 'd' THEN 'domain'
                        WHEN 'r' THEN 'range' WHEN 'p' THEN 'shell' ELSE 'base' END,
           'labels', (SELECT jsonb_agg(e.enumlabel ORDER BY e.enumsortorder) FROM pg_enum e WHERE e.enumtypid = t.oid),
           'attributes',
           (SELECT jsonb_agg(concat_ws(' ', quote_ident(a.attname), format_type(a.atttypid, a.atttypmod),
                                       CASE WHEN a.attcollation <> at.typcollation THEN 'COLLATE ' || co.collname END)
                             ORDER BY a.attnum)
              FROM pg_attribute a JOIN pg_type at ON at.oid = a.atttypid
              LEFT JOIN pg_collation co ON co.oid = a.attcollation
             WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped),
           'base', CASE WHEN t.typtype = 'd' THEN format_type(t.typbasetype, t.typtypmod) END,
           'collation', CASE WHEN t.typtype = 'd' THEN
                (SELECT format('%%I.%%I', cn.nspname, co.collname) FROM pg_collation co
                   JOIN pg_namespace cn ON cn.oid = co.collnamespace WHERE co.oid = t.typcollation) END,
           'not null', t.typnotnull,
           'default', t.typdefault,
           'constraints', (SELECT jsonb_object_agg(k.conname, pg_get_constraintdef(k.oid)) FROM pg_constraint k
                            WHERE k.contypid = t.oid AND k.contype = 'c'),
           'range', (SELECT jsonb_build_object(
                                'of', format_type(r.rngsubtype, NULL),
                                'collation', (SELECT co.collname FROM pg_collation co WHERE co.oid = r.rngcollation),
                                'operators', (SELECT format('%%I.%%I', opn.nspname, op.opcname) FROM pg_opclass op
                                                JOIN pg_namespace opn ON opn.oid = op.opcnamespace WHERE op.oid = r.rngsubopc),
                                'multirange', format_type((to_jsonb(r) ->> 'rngmultitypid')::oid, NULL),
                                'canonical', r.rngcanonical::text, 'difference', r.rngsubdiff::text)
                       FROM pg_range r WHERE r.rngtypid = t.oid),
           'functions', CASE WHEN t.typtype = 'b' THEN
                ARRAY[t.typinput::text, t.typoutput::text, t.typreceive::text, t.typsend::text, t.typmodin::text,
                      t.typmodout::text, t.typanalyze::text, t.typlen::text, t.typbyval::text, t.typalign::text] END
       ) AS facts
  FROM pg_type t
  JOIN pg_namespace n ON n.oid = t.typnamespace
  LEFT JOIN pg_class c ON c.oid = t.typrelid
 WHERE t.typnamespace = ANY (%(spaces)s::oid[]) AND t.typtype IN ('e', 'c', 'd', 'r', 'b', 'p')
   AND (c.oid IS NULL OR c.relkind = 'c')
   AND NOT EXISTS (SELECT FROM pg_type e WHERE e.typarray = t.oid)
   AND NOT EXISTS (SELECT FROM pg_depend d
                    WHERE d.classid = 'pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'e')

-- name: collations
-- Without the version of the library, which the servers have and no definition. A server stores collations per encoding.
SELECT 'collation' AS kind, n.nspname::text AS schema, NULL::text[] AS home, ARRAY[o.collname::text] AS parts, NULL AS arguments,
       jsonb_build_object(
           'provider', CASE o.collprovider WHEN 'i' THEN 'icu' WHEN 'c' THEN 'libc' WHEN 'b' THEN 'builtin' ELSE 'default' END,
           'locale', coalesce(to_jsonb(o) ->> 'colllocale', to_jsonb(o) ->> 'colliculocale'),
           'collate', o.collcollate, 'ctype', o.collctype,
           'rules', to_jsonb(o) ->> 'collicurules',
           'deterministic', o.collisdeterministic
       ) AS facts
  FROM pg_collation o JOIN pg_namespace n ON n.oid = o.collnamespace
 WHERE o.collnamespace = ANY (%(spaces)s::oid[])
   AND o.collencoding IN (-1, (SELECT d.encoding FROM pg_database d WHERE d.datname = current_database()))
   AND NOT EXISTS (SELECT FROM pg_depend d
                    WHERE d.classid = 'pg_collation'::regclass AND d.objid = o.oid AND d.deptype = 'e')

-- name: extensions
SELECT 'extension' AS kind, '' AS schema, NULL::text[] AS home, ARRAY[e.extname::text] AS parts, NULL AS arguments,
       jsonb_build_object('version', e.extversion, 'schema', n.nspname, 'newest version', a.default_version) AS facts
  FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
  LEFT JOIN pg_available_extensions a ON a.name = e.extname
 WHERE %(schemas)s::text[] IS NULL OR n.nspname = ANY (%(schemas)s::text[])

-- name: relation_rights
-- Grants without the role that granted. Entries of the owner have no name: with another owner they are the same.
SELECT 'rights' AS kind, n.nspname::text AS schema, ARRAY[n.nspname::text, c.relname::text] AS home, ARRAY[c.relname::text] AS parts,
       NULL AS arguments,
       jsonb_build_object(
           'owner', pg_get_userbyid(c.relowner),
           'grants', (SELECT jsonb_agg(g.text ORDER BY g.text COLLATE "C") FROM (
                SELECT concat_ws(' ', CASE a.grantee WHEN 0 THEN 'PUBLIC' WHEN c.relowner THEN 'the owner' ELSE pg_get_userbyid(a.grantee)::text END,
                                 a.privilege_type, CASE WHEN a.is_grantable THEN 'WITH GRANT OPTION' END)
                  FROM aclexplode(coalesce(c.relacl, acldefault(CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", c.relowner))) a) g(text)),
           'grants on columns', (SELECT jsonb_agg(g.text ORDER BY g.text COLLATE "C") FROM (
                SELECT concat_ws(' ', CASE a.grantee WHEN 0 THEN 'PUBLIC' WHEN c.relowner THEN 'the owner' ELSE pg_get_userbyid(a.grantee)::text END,
                                 format('%%s (%%I)', a.privilege_type, t.attname), CASE WHEN a.is_grantable THEN 'WITH GRANT OPTION' END)
                  FROM pg_attribute t CROSS JOIN LATERAL aclexplode(t.attacl) a
                 WHERE t.attrelid = c.oid AND t.attnum > 0 AND NOT t.attisdropped) g(text))
       ) AS facts
  FROM unnest(%(relations)s::oid[]) wanted(oid)
  JOIN pg_class c USING (oid)
  JOIN pg_namespace n ON n.oid = c.relnamespace

-- name: schema_rights
-- The same of schemas, functions and types.
SELECT 'rights' AS kind, o.schema, NULL::text[] AS home, ARRAY[o.name] AS parts, o.arguments,
       jsonb_build_object(
           'owner', pg_get_userbyid(o.owner),
           'grants', (SELECT jsonb_agg(g.text ORDER BY g.text COLLATE "C") FROM (
                SELECT concat_ws(' ', CASE a.grantee WHEN 0 THEN 'PUBLIC' WHEN o.owner THEN 'the owner' ELSE pg_get_userbyid(a.grantee)::text END,
                                 a.privilege_type, CASE WHEN a.is_grantable THEN 'WITH GRANT OPTION' END)
                  FROM aclexplode(o.acl) a) g(text))
       ) AS facts
  FROM (SELECT '' AS schema, n.nspname::text AS name, NULL::text AS arguments, n.nspowner AS owner,
               coalesce(n.nspacl, acldefault('n', n.nspowner)) AS acl
          FROM pg_namespace n WHERE n.oid = ANY (%(spaces)s::oid[])
        UNION ALL
        SELECT n.nspname::text, p.proname::text,
               coalesce((SELECT string_agg(format_type(each.oid, NULL), ', ' ORDER BY each.number)
                           FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY each(oid, number)), ''),
               p.proowner, coalesce(p.proacl, acldefault('f', p.proowner))
          FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
         WHERE p.pronamespace = ANY (%(spaces)s::oid[])
           AND NOT EXISTS (SELECT FROM pg_depend d
                            WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype IN ('e', 'i'))
        UNION ALL
        SELECT n.nspname::text, t.typname::text, NULL, t.typowner, coalesce(t.typacl, acldefault('T', t.typowner))
          FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace LEFT JOIN pg_class c ON c.oid = t.typrelid
         WHERE t.typnamespace = ANY (%(spaces)s::oid[]) AND t.typtype IN ('e', 'c', 'd', 'r', 'b')
           AND (c.oid IS NULL OR c.relkind = 'c') AND NOT EXISTS (SELECT FROM pg_type e WHERE e.typarray = t.oid)
           AND NOT EXISTS (SELECT FROM pg_depend d
                            WHERE d.classid = 'pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'e')) o

-- name: default_rights
-- ALTER DEFAULT PRIVILEGES: of a role, in a schema or in all of them, for a kind of objects.
SELECT 'default privileges' AS kind, coalesce(n.nspname::text, '') AS schema, NULL::text[] AS home,
       ARRAY[pg_get_userbyid(d.defaclrole)::text, CASE d.defaclobjtype WHEN 'r' THEN 'tables' WHEN 'S' THEN 'sequences' WHEN 'f' THEN 'functions'
             WHEN 'T' THEN 'types' WHEN 'n' THEN 'schemas' ELSE 'large objects' END] AS parts,
       NULL AS arguments,
       jsonb_build_object('grants', (SELECT jsonb_agg(g.text ORDER BY g.text COLLATE "C") FROM (
                SELECT concat_ws(' ', CASE a.grantee WHEN 0 THEN 'PUBLIC' WHEN d.defaclrole THEN 'the owner' ELSE pg_get_userbyid(a.grantee)::text END,
                                 a.privilege_type, CASE WHEN a.is_grantable THEN 'WITH GRANT OPTION' END)
                  FROM aclexplode(d.defaclacl) a) g(text))) AS facts
  FROM pg_default_acl d LEFT JOIN pg_namespace n ON n.oid = d.defaclnamespace
 WHERE d.defaclnamespace = 0 OR d.defaclnamespace = ANY (%(spaces)s::oid[])
