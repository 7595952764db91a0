-- name: objects
-- Objects of this database that a sync does not handle, or only in part: kind, name, details.
WITH db AS (SELECT d.oid, d.dattablespace FROM pg_database d WHERE d.datname = current_database())
SELECT 'publication' AS kind, p.pubname::text AS name, CASE WHEN p.puballtables THEN 'all' ELSE '' END AS detail
  FROM pg_publication p WHERE p.pubname !~ '^trueup_'
UNION ALL
SELECT 'subscription', s.subname::text, CASE WHEN s.subenabled THEN 'enabled' ELSE '' END
  FROM pg_subscription s, db WHERE s.subdbid = db.oid
UNION ALL
SELECT 'slot', s.slot_name::text, coalesce(s.plugin::text, '') FROM pg_replication_slots s
 WHERE s.database = current_database() AND s.slot_name !~ '^trueup_' AND NOT s.temporary
UNION ALL
SELECT 'event trigger', e.evtname::text, '' FROM pg_event_trigger e
 WHERE NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_event_trigger'::regclass AND d.objid = e.oid AND d.deptype = 'e')
UNION ALL
SELECT 'foreign server', s.srvname::text, '' FROM pg_foreign_server s
UNION ALL
SELECT 'user mapping', format('of %s on %s', coalesce(m.usename, 'PUBLIC'), m.srvname),
       CASE WHEN m.umoptions IS NULL THEN 'unknown' ELSE '' END
  FROM pg_user_mappings m
UNION ALL
SELECT 'scheduler', e.extname::text, '' FROM pg_extension e
 WHERE e.extname IN ('pg_cron', 'pg_partman', 'timescaledb', 'pgagent', 'pg_timetable', 'pg_dbms_job')
UNION ALL
SELECT 'configuration', c.oid::regclass::text, e.extname::text
  FROM pg_extension e CROSS JOIN unnest(e.extconfig) c(oid) WHERE e.extname NOT IN ('pg_cron', 'timescaledb', 'pgagent')
UNION ALL
SELECT 'tablespace', t.spcname::text, ''
  FROM pg_tablespace t WHERE t.oid IN (SELECT c.reltablespace FROM pg_class c WHERE c.oid >= 16384)
UNION ALL
SELECT DISTINCT 'security label', s.provider, '' FROM pg_seclabels s
ORDER BY 1, 2

-- name: locale
SELECT pg_encoding_to_char(d.encoding) AS encoding, d.datcollate::text AS collate, d.datctype::text AS ctype,
       to_jsonb(d) ->> 'datlocprovider' AS provider,
       coalesce(to_jsonb(d) ->> 'datlocale', to_jsonb(d) ->> 'daticulocale') AS locale
  FROM pg_database d WHERE d.datname = current_database()

-- name: extensions
-- Extensions of the source: name and version.
SELECT e.extname::text AS name, e.extversion AS version FROM pg_extension e WHERE e.extname <> 'plpgsql' ORDER BY 1

-- name: available
-- Extensions that the target has or can create; `can_create`: also by a role without superuser rights.
SELECT a.name::text AS name, a.installed_version IS NOT NULL AS is_created,
       EXISTS (SELECT FROM pg_available_extension_versions v
                WHERE v.name = a.name AND v.version = a.default_version AND (v.trusted OR NOT v.superuser)) AS can_create
  FROM pg_available_extensions a

-- name: taken
-- Names of objects other than tables that would collide; `home`: the table of an index or of statistics.
SELECT n.nspname::text AS schema, c.relname::text AS name, CASE WHEN c.relkind IN ('i', 'I') THEN 'index' ELSE 'relation' END AS kind,
       (SELECT h.relname::text FROM pg_index i JOIN pg_class h ON h.oid = i.indrelid WHERE i.indexrelid = c.oid) AS home
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('i', 'I', 'v', 'm', 'S', 'f') AND c.oid >= 16384 AND n.nspname !~ '^pg_' AND NOT n.nspname = ANY (%(ours)s)
   AND coalesce(obj_description(n.oid, 'pg_namespace'), '') <> 'Tubes of trueup.'
   AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
UNION ALL
SELECT n.nspname::text, s.stxname::text, 'statistics', h.relname::text
  FROM pg_statistic_ext s JOIN pg_namespace n ON n.oid = s.stxnamespace
  JOIN pg_class h ON h.oid = s.stxrelid AND h.relnamespace = s.stxnamespace
UNION ALL
SELECT '', e.evtname::text, 'event trigger', NULL FROM pg_event_trigger e
 WHERE NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_event_trigger'::regclass AND d.objid = e.oid AND d.deptype = 'e')

-- name: invalid
-- Indexes that pg_dump leaves out: a CREATE INDEX CONCURRENTLY that failed or still runs.
SELECT n.nspname::text AS schema, c.relname::text AS name, h.relname::text AS home
  FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_class h ON h.oid = i.indrelid
 WHERE NOT (i.indisready AND (i.indisvalid OR h.relkind = 'p')) AND h.relkind IN ('r', 'p', 'm') AND c.relpersistence <> 't'
 ORDER BY 1, 2

-- name: forced
-- Tables whose row security also applies to their owner.
SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relrowsecurity AND c.relforcerowsecurity
