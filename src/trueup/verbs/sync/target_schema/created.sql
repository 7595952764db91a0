-- name: planned
-- On the source: what the second step of a restore creates beside the parts of tables, by catalog and number.
SELECT o.classid::bigint, i.identity FROM unnest(%(classids)s::oid[], %(oids)s::oid[]) o(classid, oid)
 CROSS JOIN LATERAL pg_identify_object(o.classid, o.oid, 0) i
 WHERE i.type IN ('view', 'materialized view', 'function', 'procedure', 'event trigger', 'default acl')

-- name: existing
-- Which objects with these identities exist.
SELECT o.classid::bigint, o.oid::bigint, i.identity FROM (
    SELECT 'pg_class'::regclass::oid AS classid, c.oid FROM pg_class c WHERE c.relkind IN ('v', 'm') AND c.oid >= 16384
    UNION ALL SELECT 'pg_proc'::regclass, p.oid FROM pg_proc p WHERE p.oid >= 16384
    UNION ALL SELECT 'pg_event_trigger'::regclass, e.oid FROM pg_event_trigger e
    UNION ALL SELECT 'pg_default_acl'::regclass, a.oid FROM pg_default_acl a) o
 CROSS JOIN LATERAL pg_identify_object(o.classid, o.oid, 0) i
 WHERE (o.classid::bigint, i.identity) IN (SELECT * FROM unnest(%(classids)s::bigint[], %(identities)s::text[]))

-- name: record
-- The objects that this transaction created: catalog, oid, identity; oid 0: the second step will create it. The schema
-- public exists before, but is changed.
WITH objects AS (
    SELECT 'pg_class'::regclass AS classid, c.oid FROM pg_class c
     WHERE c.xmin = pg_current_xact_id()::xid AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
    UNION ALL SELECT 'pg_type'::regclass, t.oid FROM pg_type t
     WHERE t.xmin = pg_current_xact_id()::xid AND t.typtype IN ('d', 'e', 'r', 'b', 'c')
       -- The row type of a table is part of it; the relation of a composite type is part of the type.
       AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = t.typrelid AND c.relkind <> 'c')
    UNION ALL SELECT 'pg_proc'::regclass, p.oid FROM pg_proc p WHERE p.xmin = pg_current_xact_id()::xid
    UNION ALL SELECT 'pg_operator'::regclass, o.oid FROM pg_operator o WHERE o.xmin = pg_current_xact_id()::xid
    UNION ALL SELECT 'pg_opfamily'::regclass, o.oid FROM pg_opfamily o WHERE o.xmin = pg_current_xact_id()::xid
    UNION ALL SELECT 'pg_opclass'::regclass, o.oid FROM pg_opclass o WHERE o.xmin = pg_current_xact_id()::xid
    UNION ALL SELECT 'pg_cast'::regclass, c.oid FROM pg_cast c WHERE c.xmin = pg_current_xact_id()::xid
    UNION ALL SELECT 'pg_collation'::regclass, c.oid FROM pg_collation c WHERE c.xmin = pg_current_xact_id()::xid
    UNION ALL SELECT 'pg_conversion'::regclass, c.oid FROM pg_conversion c WHERE c.xmin = pg_current_xact_id()::xid
    UNION ALL SELECT 'pg_language'::regclass, l.oid FROM pg_language l WHERE l.xmin = pg_current_xact_id()::xid
    UNION ALL SELECT 'pg_transform'::regclass, t.oid FROM pg_transform t WHERE t.xmin = pg_current_xact_id()::xid
    UNION ALL SELECT 'pg_am'::regclass, a.oid FROM pg_am a WHERE a.xmin = pg_current_xact_id()::xid
    UNION ALL SELECT 'pg_ts_config'::regclass, t.oid FROM pg_ts_config t WHERE t.xmin = pg_current_xact_id()::xid
    UNION ALL SELECT 'pg_ts_dict'::regclass, t.oid FROM pg_ts_dict t WHERE t.xmin = pg_current_xact_id()::xid
    UNION ALL SELECT 'pg_ts_parser'::regclass, t.oid FROM pg_ts_parser t WHERE t.xmin = pg_current_xact_id()::xid
    UNION ALL SELECT 'pg_ts_template'::regclass, t.oid FROM pg_ts_template t WHERE t.xmin = pg_current_xact_id()::xid
    UNION ALL SELECT 'pg_foreign_server'::regclass, s.oid FROM pg_foreign_server s WHERE s.xmin = pg_current_xact_id()::xid
    UNION ALL SELECT 'pg_foreign_data_wrapper'::regclass, w.oid FROM pg_foreign_data_wrapper w WHERE w.xmin = pg_current_xact_id()::xid
    UNION ALL SELECT 'pg_extension'::regclass, x.oid FROM pg_extension x WHERE x.xmin = pg_current_xact_id()::xid
    UNION ALL SELECT 'pg_default_acl'::regclass, a.oid FROM pg_default_acl a WHERE a.xmin = pg_current_xact_id()::xid
    UNION ALL SELECT 'pg_namespace'::regclass, n.oid FROM pg_namespace n
     WHERE n.xmin = pg_current_xact_id()::xid AND n.nspname <> 'public'
    -- pg_authid can be read by superusers only.
    UNION ALL SELECT 'pg_authid'::regclass, r.oid FROM pg_roles r WHERE r.rolname = ANY (%(roles)s::text[])
)
UPDATE trueup.syncs SET created = coalesce((
    SELECT jsonb_agg(jsonb_build_array(o.classid::oid::bigint, o.oid::bigint, i.identity))
      FROM objects o CROSS JOIN LATERAL pg_identify_object(o.classid, o.oid, 0) i
     -- Columns of a partition key depend on their own table: objsubid.
     -- Privileges on objects of the system are changed too.
     WHERE o.oid >= 16384
       AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = o.classid AND d.objid = o.oid AND d.objsubid = 0
                          AND d.deptype IN ('e', 'i'))
), '[]') || %(planned)s WHERE sync = %(sync)s

-- name: created
SELECT (e ->> 0)::bigint, (e ->> 1)::bigint, e ->> 2
  FROM trueup.syncs s CROSS JOIN LATERAL jsonb_array_elements(s.created) e WHERE s.sync = %(sync)s

-- name: found
-- What exists of it, under the same name; event triggers first, so that they do not fire, schemas last.
SELECT o.classid::bigint, o.oid::bigint, i.type, i.identity
  FROM unnest(%(classids)s::oid[], %(oids)s::oid[], %(identities)s::text[]) o(classid, oid, identity)
 CROSS JOIN LATERAL pg_identify_object(o.classid, o.oid, 0) i WHERE i.identity = o.identity
 ORDER BY i.type <> 'event trigger', i.type = 'schema', i.type LIKE '%%type', i.identity

-- name: users
-- Objects that DROP ... CASCADE of these objects would drop, or would drop a column of: those that depend on one of them
-- and are no part of one (an index, a constraint, a trigger, a default value; a partition is a table of its own).
WITH RECURSIVE parts(classid, objid) AS (
    SELECT o.classid, o.oid FROM unnest(%(classids)s::oid[], %(oids)s::oid[]) o(classid, oid)
    UNION
    SELECT d.classid, d.objid FROM parts p JOIN pg_depend d ON d.refclassid = p.classid AND d.refobjid = p.objid
     WHERE d.deptype IN ('a', 'i', 'P', 'S') AND d.objsubid = 0 AND NOT EXISTS (
           SELECT FROM pg_class c WHERE d.classid = 'pg_class'::regclass AND c.oid = d.objid AND c.relkind IN ('r', 'p', 'f', 'v', 'm'))
)
SELECT DISTINCT pg_describe_object(x.classid, x.objid, x.objsubid), pg_describe_object(p.classid, p.objid, 0)
  FROM parts p JOIN pg_depend d ON d.refclassid = p.classid AND d.refobjid = p.objid AND d.deptype IN ('n', 'a', 'i', 'P', 'S')
  LEFT JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid
 CROSS JOIN LATERAL (SELECT CASE WHEN r.oid IS NULL THEN d.classid ELSE 'pg_class'::regclass::oid END,
                            coalesce(r.ev_class, d.objid), CASE WHEN r.oid IS NULL THEN d.objsubid ELSE 0 END) x(classid, objid, objsubid)
 -- Mappings of users belong to their server.
 WHERE x.classid <> 'pg_user_mapping'::regclass
   AND NOT EXISTS (SELECT FROM parts o WHERE o.classid = x.classid AND o.objid = x.objid)
 ORDER BY 1, 2

-- name: unlink
SELECT count(lo_unlink(m.oid)) FROM trueup.sync_large_objects o JOIN pg_largeobject_metadata m USING (oid) WHERE o.sync = %(sync)s
