-- name: server
SELECT current_setting('server_version_num')::int AS version,
       pg_encoding_to_char(d.encoding) AS encoding,
       current_user::text AS role,
       concat_ws('/', pg_postmaster_start_time(), inet_server_port(), d.oid) AS identity,
       concat_ws(' ', coalesce(to_jsonb(d) ->> 'datlocprovider', 'c'), d.datcollate,
                 coalesce(to_jsonb(d) ->> 'datlocale', to_jsonb(d) ->> 'daticulocale')) AS collation,
       to_jsonb(d) ->> 'datcollversion' AS collation_version
  FROM pg_database d
 WHERE d.datname = current_database()

-- name: relations
SELECT w.schema, w.name, c.oid, c.relkind::text, has_schema_privilege(n.oid, 'USAGE') AS usage, row_security_active(c.oid) AS secured
  FROM unnest(%(schemas)s::text[], %(tables)s::text[]) w(schema, name)
  JOIN pg_namespace n ON n.nspname = w.schema::name JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name::name

-- name: columns
WITH RECURSIVE base AS (
    SELECT t.oid AS start, t.oid, t.typtype, t.typbasetype, t.typtypmod, -1 AS typmod FROM pg_type t
     WHERE t.oid IN (SELECT atttypid FROM pg_attribute WHERE attrelid = ANY (%(oids)s::oid[]) AND attnum > 0 AND NOT attisdropped)
    UNION ALL
    SELECT b.start, t.oid, t.typtype, t.typbasetype, t.typtypmod, b.typtypmod FROM base b JOIN pg_type t ON t.oid = b.typbasetype
     WHERE b.typtype = 'd'
)
SELECT a.attrelid AS relation,
       a.attname::text AS name,
       format_type(a.atttypid, a.atttypmod) AS type,
       n.nspname::text AS base_schema,
       t.typname::text AS base_name,
       format_type(t.oid, CASE WHEN b.start = b.oid THEN a.atttypmod ELSE b.typmod END) AS base_type,
       t.typtype::text AS base_kind,
       t.typlen AS length,
       has_schema_privilege(n.oid, 'USAGE') AS nameable,
       -- As in trust.py; a superuser is a member of every role.
       owner.rolsuper OR pg_has_role(owner.oid, current_user, 'MEMBER')
           OR NOT (SELECT me.rolsuper FROM pg_roles me WHERE me.rolname = current_user) AND pg_has_role(owner.oid, 'MEMBER')
           AS trusted,
       b.start <> b.oid AS is_domain,
       a.attnotnull AS not_null,
       a.attgenerated::text AS generated,
       a.attidentity::text AS identity,
       has_column_privilege(a.attrelid, a.attnum, 'SELECT') AS readable,
       CASE WHEN a.attcollation = 0 THEN NULL ELSE
            concat_ws(' ', quote_ident(cn.nspname) || '.' || quote_ident(co.collname), co.collprovider, co.collcollate,
                      coalesce(to_jsonb(co) ->> 'colllocale', to_jsonb(co) ->> 'colliculocale')) END AS collation,
       co.collversion AS collation_version,
       CASE WHEN co.oid IS NULL OR co.collname = 'default' THEN NULL
            ELSE pg_collation_actual_version(co.oid) END AS collation_actual,
       coalesce(co.collname = 'default', false) AS collation_is_default,
       a.atttypid::int8 AS declared,
       -- What initdb created in pg_catalog is no enum, has no operators elsewhere, and contains no other types.
       a.atttypid >= 16384 OR n.nspname <> 'pg_catalog' OR b.start <> b.oid AS has_details
  FROM pg_attribute a
  JOIN base b ON b.start = a.atttypid AND b.typtype <> 'd'
  JOIN pg_type t ON t.oid = b.oid
  JOIN pg_namespace n ON n.oid = t.typnamespace
  JOIN pg_roles owner ON owner.oid = t.typowner
  LEFT JOIN pg_collation co ON co.oid = a.attcollation
  LEFT JOIN pg_namespace cn ON cn.oid = co.collnamespace
 WHERE a.attrelid = ANY (%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attnum

-- name: type_details
-- For the columns with `has_details`. Most tables have none, and planning this takes longer than planning `columns`.
WITH RECURSIVE base AS (
    SELECT t.oid AS start, t.oid, t.typtype, t.typbasetype FROM pg_type t WHERE t.oid = ANY (%(types)s::oid[])
    UNION ALL
    SELECT b.start, t.oid, t.typtype, t.typbasetype FROM base b JOIN pg_type t ON t.oid = b.typbasetype WHERE b.typtype = 'd'
), inside AS (
    -- All types that the type of a column contains, recursively.
    SELECT b.start, b.start AS oid FROM base b
    UNION
    SELECT i.start, part.oid
      FROM inside i JOIN pg_type t ON t.oid = i.oid,
           LATERAL (SELECT t.typbasetype WHERE t.typtype = 'd'
                    UNION ALL SELECT t.typelem WHERE t.typcategory = 'A'
                    UNION ALL SELECT r.rngsubtype FROM pg_range r
                               WHERE t.oid IN (r.rngtypid, (to_jsonb(r) ->> 'rngmultitypid')::oid)
                    UNION ALL SELECT f.atttypid FROM pg_attribute f
                               WHERE t.typtype = 'c' AND f.attrelid = t.typrelid AND f.attnum > 0 AND NOT f.attisdropped
           ) part(oid)
     WHERE t.typtype <> 'b' OR t.typcategory = 'A'
), made AS (
    SELECT i.start, i.oid, format('%%s is %%s', format_type(i.oid, NULL),
           CASE t.typtype
           WHEN 'd' THEN format_type(t.typbasetype, t.typtypmod)
           WHEN 'r' THEN (SELECT 'a range of ' || format_type(r.rngsubtype, NULL) FROM pg_range r WHERE r.rngtypid = t.oid)
           ELSE (SELECT '(' || string_agg(quote_ident(f.attname) || ' ' || format_type(f.atttypid, f.atttypmod), ', '
                                          ORDER BY f.attnum) || ')'
                   FROM pg_attribute f WHERE f.attrelid = t.typrelid AND f.attnum > 0 AND NOT f.attisdropped) END) AS how
      FROM inside i JOIN pg_type t ON t.oid = i.oid
     WHERE t.typtype IN ('c', 'd', 'r') AND t.typnamespace <> 'pg_catalog'::regnamespace
)
SELECT b.start::int8 AS declared,
       -- The equality operator of a type of an extension. Only a superuser can put an operator into a default class.
       (SELECT format('OPERATOR(%%I.%%s)', opn.nspname, op.oprname)
          FROM pg_opclass oc JOIN pg_am am ON am.oid = oc.opcmethod AND am.amname = 'btree'
          JOIN pg_amop ao ON ao.amopfamily = oc.opcfamily AND ao.amopstrategy = 3
                         AND ao.amoplefttype = oc.opcintype AND ao.amoprighttype = oc.opcintype
          JOIN pg_operator op ON op.oid = ao.amopopr JOIN pg_namespace opn ON opn.oid = op.oprnamespace
         WHERE oc.opcintype = t.oid AND oc.opcdefault AND t.typnamespace <> 'pg_catalog'::regnamespace) AS equality,
       (SELECT array_agg(e.enumlabel::text ORDER BY e.enumsortorder) FROM pg_enum e WHERE e.enumtypid = t.oid) AS labels,
       (SELECT string_agg(m.how, '; ' ORDER BY m.how) FROM made m WHERE m.start = b.start) AS made_of
  FROM base b JOIN pg_type t ON t.oid = b.oid
 WHERE b.typtype <> 'd'

-- name: keys
SELECT i.indrelid AS relation, i.indisprimary AS is_primary,
       (SELECT array_agg(a.attname::text ORDER BY k.ord)
          FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, ord)
          JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
         WHERE k.ord <= i.indnkeyatts) AS columns
  FROM pg_index i
 WHERE i.indrelid = ANY (%(oids)s::oid[])
   AND i.indisunique AND i.indisvalid AND i.indisready AND i.indpred IS NULL AND i.indexprs IS NULL
 ORDER BY i.indisprimary DESC, i.indnkeyatts, i.indexrelid

-- name: row_facts
-- What the rows of a table and of all tables below it may be: in a foreign table, and NULL in these columns. NOT NULL may be
-- NOT VALID or NO INHERIT, and tables that inherit may lack it; a partition that is no foreign table always has it.
WITH RECURSIVE tree AS (
    SELECT o.oid AS root, o.oid FROM unnest(%(oids)s::oid[]) o(oid)
    UNION
    SELECT t.root, i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid
)
SELECT t.root AS relation, bool_or(c.relkind = 'f') AS has_foreign,
       coalesce(array_agg(DISTINCT a.attname::text) FILTER (WHERE a.attname IS NOT NULL), '{}') AS may_be_null
  FROM tree t JOIN pg_class c ON c.oid = t.oid
  -- There may be thousands of partitions: their columns are not read.
  LEFT JOIN pg_attribute a ON a.attrelid = CASE WHEN t.oid = t.root OR NOT c.relispartition THEN t.oid END
       AND a.attnum > 0 AND NOT a.attisdropped
       AND (NOT a.attnotnull
            OR EXISTS (SELECT FROM pg_constraint n
                        WHERE n.conrelid = t.oid AND n.contype = 'n' AND a.attnum = ANY (n.conkey) AND NOT n.convalidated))
 GROUP BY 1

-- name: similar_tables
SELECT n.nspname::text, c.relname::text
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p', 'm') AND n.nspname NOT IN ('pg_catalog', 'information_schema')
   AND n.nspname NOT LIKE 'pg\_toast%%' AND NOT c.relispartition

-- name: tables_and_views
-- Includes relations that cannot be compared, to distinguish them from missing ones. The pages of a partitioned table are those of its
-- partitions, as of the last ANALYZE or VACUUM: to ask for the size of a table is to wait for the locks on it, and these are all tables.
SELECT n.nspname::text AS schema, c.relname::text AS name, c.relkind::text AS kind, c.relispartition AS is_partition,
       n.nspname = 'trueup' OR EXISTS (
           SELECT FROM pg_class i
            WHERE i.relnamespace = n.oid AND i.relname = 'installation'
              AND obj_description(i.oid, 'pg_class') LIKE '%%version of trueup tube%%') AS is_ours,
       coalesce(CASE c.relkind
                WHEN 'p' THEN (
                    WITH RECURSIVE parts(oid) AS (
                        SELECT i.inhrelid FROM pg_inherits i WHERE i.inhparent = c.oid
                        UNION ALL SELECT i.inhrelid FROM parts p JOIN pg_inherits i ON i.inhparent = p.oid)
                    SELECT sum(t.relpages) FROM parts p JOIN pg_class t ON t.oid = p.oid AND t.relkind = 'r')
                WHEN 'r' THEN c.relpages END, 0)::bigint AS pages
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p', 'm', 'v', 'f') AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
