-- name: triggers
-- Per attached table, a hash of its partitions and a hash of the triggers that capture them: the rows of the catalog with
-- the transactions that wrote them. A trigger that was disabled and enabled again has another hash.
SELECT s.source, md5(string_agg(DISTINCT r.relation::oid::text, ',')),
       md5(string_agg(concat_ws(':', g.oid, g.xmin, g.tgenabled), ',' ORDER BY g.oid))
  FROM {sources} s
 CROSS JOIN LATERAL {relations}(s."table") r(relation)
  LEFT JOIN pg_catalog.pg_trigger g ON g.tgrelid = r.relation AND starts_with(g.tgname, %(prefix)s)
       -- The kind of a trigger is one word. A longer rest belongs to a tube whose name starts with the name of this tube.
       AND strpos(substr(g.tgname, length(%(prefix)s) + 1), '_') = 0
 WHERE s.tube = %(tube)s AND s.detached_at IS NULL AND EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = s."table")
 GROUP BY s.source

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
