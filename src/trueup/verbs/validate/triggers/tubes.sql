-- name: triggers
-- Per attached table, a hash of its partitions, of the triggers that capture them, and of the functions of the triggers: the
-- rows of the catalog with the transactions that wrote them. A trigger that was disabled and enabled again has another hash, and
-- so has a partition that was detached and attached again, and a table that was a partition or a child of another one.
SELECT s.source, md5(string_agg(DISTINCT concat_ws(':', r.relation::oid, i.xmin), ',')),
       md5(concat_ws('/', string_agg(concat_ws(':', g.oid, g.xmin, g.tgenabled), ',' ORDER BY g.oid), s.parents ->> 'noted_at')),
       (SELECT md5(string_agg(concat_ws(':', p.oid, p.xmin), ',' ORDER BY p.oid)) FROM pg_catalog.pg_proc p
         WHERE p.pronamespace = to_regnamespace(%(schema)s::text)
           AND p.proname IN ('touch_' || s.source, 'touch_' || s.source || '_row'))
  FROM {sources} s
 CROSS JOIN LATERAL {relations}(s."table") r(relation)
  LEFT JOIN pg_catalog.pg_inherits i ON i.inhrelid = r.relation AND r.relation <> s."table"
  LEFT JOIN pg_catalog.pg_trigger g ON g.tgrelid = r.relation AND starts_with(g.tgname, %(prefix)s)
       -- The kind of a trigger is one word. A longer rest belongs to a tube whose name starts with the name of this tube.
       AND strpos(substr(g.tgname, length(%(prefix)s) + 1), '_') = 0
 WHERE s.tube = %(tube)s AND s.detached_at IS NULL AND EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = s."table")
 GROUP BY s.source

-- name: replaced
-- The attached tables with triggers or functions that are not those of the tube, and statements that drop such triggers.
-- The others are dropped when the table is detached.
SELECT s.source, coalesce(g.statements, '{{}}')
  FROM {sources} s
  LEFT JOIN LATERAL (
       -- A clone of a trigger is dropped with the original.
       SELECT count(*) AS wrong, array_agg(format('DROP TRIGGER IF EXISTS %%I ON %%s', t.tgname, t.tgrelid::regclass))
              FILTER (WHERE t.tgparentid = 0) AS statements
         FROM {tube_relations}(s."table") r(relation)
         JOIN pg_catalog.pg_trigger t ON t.tgrelid = r.relation AND starts_with(t.tgname, %(prefix)s)
         -- Per kind of trigger: its type (1 row, 4 insert, 8 delete, 16 update, 32 truncate) and its function.
         JOIN (VALUES ('insert', 4, ''), ('update', 16, ''), ('delete', 8, ''), ('truncate', 32, ''), ('row', 29, '_row'))
              k(kind, type, suffix) ON k.kind = substr(t.tgname, length(%(prefix)s) + 1)
        WHERE t.tgtype <> k.type OR t.tgqual IS NOT NULL OR t.tgattr <> ''::int2vector
           OR t.tgfoid IS DISTINCT FROM to_regprocedure(format('%%s.touch_%%s%%s()', %(schema)s::text, s.source, k.suffix))) g ON true
 WHERE s.tube = %(tube)s AND s.detached_at IS NULL AND EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = s."table")
   AND s.source = coalesce(%(source)s::int, s.source)
   AND (g.wrong > 0 OR EXISTS (
       SELECT FROM (VALUES (false, ''), (true, '_row')) f(each_row, suffix)
         LEFT JOIN pg_catalog.pg_proc p ON p.pronamespace = to_regnamespace(%(schema)s::text)
              AND p.proname = 'touch_' || s.source || f.suffix AND p.pronargs = 0
         LEFT JOIN pg_catalog.pg_language l ON l.oid = p.prolang
        WHERE p.oid IS NULL OR NOT p.prosecdef OR l.lanname <> 'plpgsql'
           OR 'search_path=pg_catalog, pg_temp' <> ALL (coalesce(p.proconfig, '{{}}'))
           OR p.prosrc <> {tube_trigger_body}(s.source, f.each_row)))

-- name: other_readers
-- Jobs and other validations that have read the tube; another text after each job, and after each round of a validation.
SELECT 'job ' || w.partition || ':' || w.generation FROM {workers} w WHERE w.tube = %(tube)s
UNION ALL
SELECT r.reader || ':' || r.begun FROM {readers} r WHERE r.tube = %(tube)s AND r.reader <> %(reader)s
ORDER BY 1

-- name: writers
-- Transactions that have written pods and have not ended (a lock is released after the commit is visible), and whether
-- each may be committed and wait for a standby; that is assumed if the state of the session is hidden from this role.
SELECT l.virtualtransaction::text,
       current_setting('synchronous_standby_names') <> '' AND (a.state IS NULL OR a.wait_event IS NOT DISTINCT FROM 'SyncRep')
  FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'relation' AND l.relation = %(pods)s::regclass AND l.mode = 'RowExclusiveLock' AND l.granted
   AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
   AND l.pid IS DISTINCT FROM pg_backend_pid()
