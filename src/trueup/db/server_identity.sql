-- name: server
-- The control file of a primary shows a new timeline only after the next checkpoint; the name of its log file at once.
SELECT (SELECT system_identifier::text FROM pg_control_system()) || '/' ||
           (SELECT oid FROM pg_database WHERE datname = current_database()),
       CASE WHEN pg_is_in_recovery()
            THEN (SELECT greatest(c.timeline_id, r.min_recovery_end_timeline)
                    FROM pg_control_checkpoint() c, pg_control_recovery() r)
            ELSE ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int END,
       CASE WHEN NOT pg_is_in_recovery() THEN (pg_current_wal_flush_lsn() - '0/0')::int8 END

-- name: without_control
SELECT '/' || (SELECT oid FROM pg_database WHERE datname = current_database()),
       CASE WHEN pg_is_in_recovery() THEN 0
            ELSE ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int END,
       CASE WHEN NOT pg_is_in_recovery() THEN (pg_current_wal_flush_lsn() - '0/0')::int8 END

-- name: table
SELECT current_database()::text,
       coalesce((SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                  WHERE n.nspname = %(schema)s AND c.relname = %(table)s), 0)::int8

-- name: facts
-- TRUNCATE and everything that writes a table again replace its file. A partition or child that is removed and added
-- again has another row in pg_inherits. A column that is dropped and added again, renamed, or of another type has another row
-- in pg_attribute; the expression of a virtual column has its own; fields of composite types and labels of enumerations are
-- part of a column.
WITH RECURSIVE tree AS (
    SELECT c.oid, NULL::xid AS added FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname = %(schema)s AND c.relname = %(table)s
    UNION
    SELECT i.inhrelid, i.xmin FROM pg_inherits i JOIN tree ON tree.oid = i.inhparent
), facts AS (
    SELECT md5(string_agg(concat_ws(' ', t.oid, t.added, c.relfilenode), ',' ORDER BY t.oid, t.added::text)) AS files,
           bool_or(c.relkind = 'f' OR c.relpersistence = 'u') AS is_unknown
      FROM tree t JOIN pg_class c ON c.oid = t.oid
), types AS (
    SELECT a.atttypid AS oid FROM pg_attribute a WHERE a.attrelid IN (SELECT oid FROM tree) AND a.attnum > 0 AND a.atttypid >= 16384
    UNION
    SELECT part.oid FROM types t JOIN pg_type y ON y.oid = t.oid CROSS JOIN LATERAL (
           SELECT y.typbasetype WHERE y.typtype = 'd'
           UNION ALL SELECT y.typelem WHERE y.typcategory = 'A'
           UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE y.oid IN (r.rngtypid, (to_jsonb(r) ->> 'rngmultitypid')::oid)
           UNION ALL SELECT f.atttypid FROM pg_attribute f
                      WHERE y.typtype = 'c' AND f.attrelid = y.typrelid AND f.attnum > 0 AND NOT f.attisdropped) part(oid)
     WHERE part.oid >= 16384
), columns AS (
    SELECT md5(string_agg(x.text, ',' ORDER BY x.text COLLATE "C")) AS columns FROM (
           SELECT concat_ws(' ', a.attrelid, a.attnum, a.xmin, d.xmin)
             FROM pg_attribute a
             LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum AND a.attgenerated = 'v'
            WHERE a.attnum > 0
              AND (a.attrelid IN (SELECT oid FROM tree)
                   OR a.attrelid IN (SELECT y.typrelid FROM types t JOIN pg_type y ON y.oid = t.oid AND y.typtype = 'c'))
           UNION ALL
           SELECT concat_ws(' ', e.oid, e.enumlabel) FROM types t JOIN pg_enum e ON e.enumtypid = t.oid) x(text)
)
SELECT coalesce((SELECT oid FROM tree WHERE added IS NULL), 0)::int8,
       CASE WHEN is_unknown THEN '' ELSE coalesce(files, '') END, CASE WHEN is_unknown THEN '' ELSE coalesce(columns, '') END
  FROM facts, columns
