-- name: record
-- The objects that this transaction created: catalog, oid, identity. The schema public exists before, but is changed.
WITH objects AS (
    SELECT 'pg_class'::regclass AS classid, c.oid FROM pg_class c
     WHERE c.xmin = pg_current_xact_id()::xid AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f', 'c') AND NOT c.relispartition
    UNION ALL SELECT 'pg_type'::regclass, t.oid FROM pg_type t
     WHERE t.xmin = pg_current_xact_id()::xid AND t.typrelid = 0 AND t.typelem = 0 AND t.typtype IN ('d', 'e', 'r', 'b')
    UNION ALL SELECT 'pg_proc'::regclass, p.oid FROM pg_proc p WHERE p.xmin = pg_current_xact_id()::xid
    UNION ALL SELECT 'pg_operator'::regclass, o.oid FROM pg_operator o WHERE o.xmin = pg_current_xact_id()::xid
    UNION ALL SELECT 'pg_opfamily'::regclass, o.oid FROM pg_opfamily o WHERE o.xmin = pg_current_xact_id()::xid
    UNION ALL SELECT 'pg_cast'::regclass, c.oid FROM pg_cast c WHERE c.xmin = pg_current_xact_id()::xid
    UNION ALL SELECT 'pg_collation'::regclass, c.oid FROM pg_collation c WHERE c.xmin = pg_current_xact_id()::xid
    UNION ALL SELECT 'pg_ts_config'::regclass, t.oid FROM pg_ts_config t WHERE t.xmin = pg_current_xact_id()::xid
    UNION ALL SELECT 'pg_ts_dict'::regclass, t.oid FROM pg_ts_dict t WHERE t.xmin = pg_current_xact_id()::xid
    UNION ALL SELECT 'pg_foreign_server'::regclass, s.oid FROM pg_foreign_server s WHERE s.xmin = pg_current_xact_id()::xid
    UNION ALL SELECT 'pg_foreign_data_wrapper'::regclass, w.oid FROM pg_foreign_data_wrapper w
               WHERE w.xmin = pg_current_xact_id()::xid
    UNION ALL SELECT 'pg_namespace'::regclass, n.oid FROM pg_namespace n
     WHERE n.xmin = pg_current_xact_id()::xid AND n.nspname <> 'public'
)
UPDATE trueup.syncs SET created = coalesce((
    SELECT jsonb_agg(jsonb_build_array(o.classid::oid::bigint, o.oid::bigint, i.identity))
      FROM objects o CROSS JOIN LATERAL pg_identify_object(o.classid, o.oid, 0) i
     WHERE NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = o.classid AND d.objid = o.oid AND d.deptype IN ('e', 'i'))
), '[]') WHERE sync = %(sync)s

-- name: created
-- What exists of it, under the same name; schemas last.
SELECT i.type, i.identity FROM trueup.syncs s CROSS JOIN LATERAL jsonb_array_elements(s.created) e
 CROSS JOIN LATERAL pg_identify_object((e ->> 0)::oid, (e ->> 1)::oid, 0) i
 WHERE s.sync = %(sync)s AND i.identity = e ->> 2
 ORDER BY i.type = 'schema', i.type LIKE '%%type', i.identity

-- name: exists
SELECT EXISTS (SELECT FROM trueup.syncs s CROSS JOIN LATERAL jsonb_array_elements(s.created) e
   CROSS JOIN LATERAL pg_identify_object((e ->> 0)::oid, (e ->> 1)::oid, 0) i
   WHERE s.sync = %(sync)s AND i.identity = e ->> 2 AND i.identity = %(identity)s AND i.type = %(type)s)

-- name: unlink
SELECT count(lo_unlink(m.oid)) FROM trueup.sync_large_objects o JOIN pg_largeobject_metadata m USING (oid) WHERE o.sync = %(sync)s
