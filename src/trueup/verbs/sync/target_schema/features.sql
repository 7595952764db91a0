-- name: has_lz4
SELECT EXISTS (SELECT FROM pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals))

-- name: lz4
-- The columns that are compressed with lz4, of tables, their partitions and materialized views.
SELECT n.nspname::text AS schema, c.relname::text AS name, c.relkind = 'm' AS is_view, a.attname::text AS column
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE a.attcompression = 'l' AND NOT a.attisdropped AND c.relkind IN ('r', 'p', 'm') AND c.relpersistence <> 't'
 ORDER BY 1, 2, a.attnum

-- name: xml
-- The columns whose values contain XML: by their type, or by one that their type is made of.
WITH RECURSIVE made_of(type) AS (
    SELECT 'xml'::regtype::oid
    UNION
    SELECT t.oid FROM made_of m JOIN pg_type t
        ON t.typbasetype = m.type OR t.typelem = m.type AND t.typcategory = 'A'
        OR EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.atttypid = m.type AND NOT a.attisdropped)
)
SELECT c.oid::bigint, a.attname::text AS column FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN made_of m ON m.type = a.atttypid
 WHERE a.attnum > 0 AND NOT a.attisdropped AND c.oid = ANY (%(oids)s::oid[]) ORDER BY c.oid, a.attnum

-- name: xml_definitions
-- The definitions with a constant of type xml, or with XMLELEMENT, XMLFOREST or XMLPI, which a server evaluates in part
-- when they are created; and their relations.
WITH trees(classid, objid, home, tree) AS (
    SELECT 'pg_rewrite'::regclass::oid, r.oid, r.ev_class, r.ev_action::text FROM pg_rewrite r WHERE r.rulename <> '_RETURN'
    UNION ALL SELECT 'pg_class'::regclass, r.ev_class, r.ev_class, r.ev_action::text FROM pg_rewrite r WHERE r.rulename = '_RETURN'
    UNION ALL SELECT 'pg_attrdef'::regclass, f.oid, f.adrelid, f.adbin::text FROM pg_attrdef f
    UNION ALL SELECT 'pg_constraint'::regclass, k.oid, k.conrelid, k.conbin::text FROM pg_constraint k
    UNION ALL SELECT 'pg_class'::regclass, i.indexrelid, i.indrelid, concat(i.indexprs, i.indpred) FROM pg_index i
    UNION ALL SELECT 'pg_policy'::regclass, p.oid, p.polrelid, concat(p.polqual, p.polwithcheck) FROM pg_policy p
    UNION ALL SELECT 'pg_trigger'::regclass, t.oid, t.tgrelid, t.tgqual::text FROM pg_trigger t
    UNION ALL SELECT 'pg_type'::regclass, t.oid, 0, t.typdefaultbin::text FROM pg_type t
    UNION ALL SELECT 'pg_proc'::regclass, f.oid, 0, concat(f.proargdefaults, f.prosqlbody) FROM pg_proc f
)
SELECT pg_describe_object(t.classid, t.objid, 0) AS shown, c.relnamespace::regnamespace::text AS schema, c.relname::text AS name
  FROM trees t LEFT JOIN pg_class c ON c.oid = t.home
 WHERE t.objid >= 16384 AND t.tree ~ '\{XMLEXPR :op [124] |:consttype 142 [^}]*:constisnull false'
   AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = t.classid AND d.objid = t.objid AND d.deptype = 'e')
 ORDER BY 1

-- name: known_collations
SELECT collname::text FROM pg_collation WHERE collencoding IN (-1, (SELECT encoding FROM pg_database WHERE datname = current_database()))

-- name: collations
-- The collations of the server that objects of the database use, these objects, and their relations.
SELECT k.collname::text AS collation, k.collprovider = 'i' AS is_icu, pg_describe_object(d.classid, d.objid, d.objsubid) AS shown,
       h.relnamespace::regnamespace::text AS schema, h.relname::text AS name
  FROM pg_depend d JOIN pg_collation k ON k.oid = d.refobjid AND k.oid < 16384
  LEFT JOIN pg_attrdef f ON d.classid = 'pg_attrdef'::regclass AND f.oid = d.objid
  LEFT JOIN pg_constraint o ON d.classid = 'pg_constraint'::regclass AND o.oid = d.objid
  LEFT JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid
  LEFT JOIN pg_index i ON d.classid = 'pg_class'::regclass AND i.indexrelid = d.objid
  LEFT JOIN pg_class h ON h.oid = coalesce(f.adrelid, nullif(o.conrelid, 0), r.ev_class, i.indrelid,
                                           CASE WHEN d.classid = 'pg_class'::regclass THEN d.objid END)
 WHERE d.refclassid = 'pg_collation'::regclass AND d.objid >= 16384 ORDER BY 1, 3
