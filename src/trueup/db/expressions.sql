-- name: functions
-- The functions that an expression calls: by OID, through operators, and through types that are not built in.
WITH called(oid) AS (
    SELECT u.oid FROM unnest(%(functions)s::oid[]) u(oid)
    UNION SELECT o.oprcode FROM unnest(%(operators)s::oid[]) u(oid) JOIN pg_catalog.pg_operator o ON o.oid = u.oid
    -- Json functions, quote_literal and `anynonarray || text` look up casts themselves.
    UNION SELECT c.castfunc FROM unnest(%(types)s::oid[]) u(oid) JOIN pg_catalog.pg_cast c ON c.castsource = u.oid
           WHERE c.castmethod = 'f' AND c.casttarget IN ('json'::regtype, 'text'::regtype)
    -- The planner calls the difference function of a range type.
    UNION SELECT f.oid FROM unnest(%(types)s::oid[]) u(oid)
            JOIN pg_catalog.pg_range g ON u.oid IN (g.rngtypid, g.rngmultitypid)
           CROSS JOIN unnest(ARRAY[g.rngsubdiff, g.rngcanonical]::oid[]) f(oid)
)
SELECT n.nspname::text AS schema, p.proname::text AS name,
       pg_catalog.pg_get_function_identity_arguments(p.oid) AS arguments,
       p.oid < 16384 AND n.nspname = 'pg_catalog' AS is_built_in, p.provolatile = 'v' AS is_volatile,
       p.proargtypes::oid[] && ARRAY['cstring'::regtype, 'internal'::regtype]::oid[] AS is_internal,
       coalesce(r.rolname::text, p.proowner::text) AS owner, coalesce(r.rolsuper, false) AS is_of_superuser,
       coalesce((SELECT e.extname::text FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid
                  WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
                    AND d.refclassid = 'pg_extension'::regclass), '') AS extension
  FROM called c
  JOIN pg_catalog.pg_proc p ON p.oid = c.oid
  JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
  LEFT JOIN pg_catalog.pg_roles r ON r.oid = p.proowner
 ORDER BY 1, 2, 3

-- name: parts
-- These types and those of their elements, bounds and columns, without built-in ones; of domains also the checks, the
-- default value, and whether a role that is not a superuser wrote these. Only a superuser can create a base type: its
-- functions are trusted.
WITH RECURSIVE parts(type, oid) AS (
    SELECT u.oid, u.oid FROM unnest(%(types)s::oid[]) u(oid) WHERE u.oid >= 16384
    UNION
    SELECT p.type, x.oid FROM parts p JOIN pg_catalog.pg_type t ON t.oid = p.oid
     CROSS JOIN LATERAL (
        SELECT t.typelem
         UNION ALL SELECT t.typbasetype
         UNION ALL SELECT g.rngsubtype FROM pg_catalog.pg_range g WHERE t.oid IN (g.rngtypid, g.rngmultitypid)
         UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a
                    WHERE a.attrelid = t.typrelid AND t.typrelid <> 0 AND a.attnum > 0 AND NOT a.attisdropped
     ) x(oid)
     WHERE x.oid >= 16384
)
SELECT p.type::bigint, p.oid::bigint,
       ARRAY(SELECT c.conbin::text FROM pg_catalog.pg_constraint c WHERE c.contypid = p.oid AND c.contype = 'c') AS checks,
       CASE WHEN t.typtype = 'd' THEN t.typdefaultbin::text END AS default,
       coalesce(t.typtype = 'd', false) AND NOT coalesce(r.rolsuper, false) AS is_foreign
  FROM parts p LEFT JOIN pg_catalog.pg_type t ON t.oid = p.oid LEFT JOIN pg_catalog.pg_roles r ON r.oid = t.typowner

-- name: own_types
-- Whether a table has a column of a composite type, a domain, an array or a range that is not built in.
SELECT EXISTS (SELECT FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
                WHERE a.attrelid = to_regclass(%(table)s) AND a.attnum > 0 AND NOT a.attisdropped
                  AND (t.oid >= 16384 AND t.typtype NOT IN ('b', 'e') OR t.typelem >= 16384))

-- name: guard
-- See `Examined.guard`; with a whole row (0), of all columns.
-- Types of users have other categories than built-in scalar types, so that the CASE fails when it is parsed; the planner
-- removes all of it.
SELECT coalesce('(true OR ' || string_agg(CASE
           WHEN t.typnamespace = 'pg_catalog'::regnamespace AND t.typcategory NOT IN ('A', 'R', 'C', 'E')
           THEN format('(CASE WHEN true THEN %%s ELSE NULL::%%s END) IS NULL', c.name, format_type(t.oid, NULL))
           ELSE format('array_eq(NULL::%%s%%s, ARRAY[%%s]) IS NULL', format_type(t.oid, NULL),
                       CASE WHEN t.typcategory = 'A' THEN '' ELSE '[]' END, c.name)
       END, ' OR ' ORDER BY a.attnum) || ')', 'true')
  FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
 CROSS JOIN LATERAL (SELECT CASE WHEN %(alias)s = '' THEN '' ELSE %(alias)s || '.' END || quote_ident(a.attname)) c(name)
 WHERE a.attrelid = %(table)s::regclass AND a.attnum > 0 AND NOT a.attisdropped
   AND (a.attnum = ANY (%(columns)s::int[]) OR 0 = ANY (%(columns)s::int[]))

-- name: tables
SELECT n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = ANY (%s::oid[])

-- name: foreign_tables
-- The foreign tables among tables and the tables that inherit from them.
WITH RECURSIVE used(oid) AS (
    SELECT u.oid FROM unnest(%(tables)s::oid[]) u(oid) WHERE u.oid IS DISTINCT FROM to_regclass(%(table)s)
    UNION SELECT i.inhrelid FROM used u JOIN pg_catalog.pg_inherits i ON i.inhparent = u.oid
)
SELECT c.oid::regclass::text FROM used u JOIN pg_catalog.pg_class c ON c.oid = u.oid WHERE c.relkind = 'f' ORDER BY 1
