-- name: left_out
-- The relations (with their partitions) that are not created on the target, and all that depends on them: what
-- DROP ... CASCADE would drop. `is_root`: a relation that the user left out, or a partition of one.
WITH RECURSIVE tree(oid) AS (
    SELECT o FROM unnest(%(oids)s::oid[]) o
    UNION
    SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid
      JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition
), gone(classid, objid, cause) AS (
    SELECT 'pg_class'::regclass::oid, t.oid, t.oid FROM tree t
    UNION
    SELECT x.classid, x.objid, g.cause FROM gone g CROSS JOIN LATERAL (
        -- The rule of a view is reported as the view.
        SELECT CASE WHEN r.oid IS NULL THEN d.classid ELSE 'pg_class'::regclass::oid END,
               coalesce(r.ev_class, d.objid)
          FROM pg_depend d LEFT JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid
         WHERE d.refclassid = g.classid AND d.refobjid = g.objid AND d.deptype IN ('n', 'a', 'i')
    ) x(classid, objid)
), found AS (
    SELECT g.classid, g.objid, min(g.cause) AS cause FROM gone g GROUP BY 1, 2
), homes AS (
    -- The table that a part of a table belongs to: parts of a table that is left out are left out with it.
    SELECT f.*, CASE f.classid
               WHEN 'pg_constraint'::regclass THEN (SELECT nullif(k.conrelid, 0) FROM pg_constraint k WHERE k.oid = f.objid)
               WHEN 'pg_attrdef'::regclass THEN (SELECT a.adrelid FROM pg_attrdef a WHERE a.oid = f.objid)
               WHEN 'pg_trigger'::regclass THEN (SELECT t.tgrelid FROM pg_trigger t WHERE t.oid = f.objid)
               WHEN 'pg_policy'::regclass THEN (SELECT p.polrelid FROM pg_policy p WHERE p.oid = f.objid)
               WHEN 'pg_statistic_ext'::regclass THEN (SELECT s.stxrelid FROM pg_statistic_ext s WHERE s.oid = f.objid)
               WHEN 'pg_type'::regclass THEN (SELECT coalesce(nullif(t.typrelid, 0), e.typrelid) FROM pg_type t
                                                LEFT JOIN pg_type e ON e.oid = t.typelem WHERE t.oid = f.objid)
           END AS home,
           c.relkind, i.indrelid, n.nspname, c.relname
      FROM found f LEFT JOIN pg_class c ON f.classid = 'pg_class'::regclass AND c.oid = f.objid
      LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
      LEFT JOIN pg_index i ON i.indexrelid = c.oid
)
SELECT coalesce(h.relkind::text, '') AS kind, h.nspname::text AS schema, h.relname::text AS name,
       pg_describe_object(h.classid, h.objid, 0) AS shown, h.cause::regclass::text AS cause, h.cause::bigint AS cause_oid,
       h.objid IN (SELECT t.oid FROM tree t) AND h.classid = 'pg_class'::regclass AS is_root,
       h.classid = 'pg_constraint'::regclass AND EXISTS (
           SELECT FROM pg_constraint k WHERE k.oid = h.objid AND k.contype = 'f') AS is_foreign_key,
       -- A sequence of a table that is left out.
       h.relkind = 'S' AND NOT EXISTS (
           SELECT FROM pg_depend d JOIN pg_attrdef a ON a.oid = d.objid
            WHERE d.classid = 'pg_attrdef'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = h.objid
              AND NOT EXISTS (SELECT FROM found g WHERE g.classid = 'pg_class'::regclass AND g.objid = a.adrelid)
       ) AS is_own_sequence
  FROM homes h
 WHERE h.classid NOT IN ('pg_publication_rel'::regclass, 'pg_rewrite'::regclass)
   -- The triggers of a constraint, some of them on another table, are created with the constraint.
   AND NOT (h.classid = 'pg_trigger'::regclass AND EXISTS (SELECT FROM pg_trigger t WHERE t.oid = h.objid AND t.tgisinternal))
   AND coalesce(h.relkind, ' ') NOT IN ('t', 'I', 'i') AND NOT coalesce(h.classid = 'pg_type'::regclass AND h.home IS NULL
           AND EXISTS (SELECT FROM pg_type t JOIN pg_type e ON e.oid = t.typelem WHERE t.oid = h.objid AND t.typcategory = 'A'), false)
   AND (h.home IS NULL OR NOT EXISTS (
           SELECT FROM found g WHERE g.classid = 'pg_class'::regclass AND g.objid = h.home))
 ORDER BY 6 DESC, 4
