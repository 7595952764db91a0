-- name: triggers
-- The partitions of each attached table, and by which triggers all of them are captured: rows of the catalog, and the
-- transactions that wrote them. One that was switched off and on again is another than before.
SELECT s.source, md5(string_agg(DISTINCT r.relation::oid::text, ',')),
       md5(string_agg(concat_ws(':', g.oid, g.xmin, g.tgenabled), ',' ORDER BY g.oid))
  FROM {sources} s
 CROSS JOIN LATERAL {relations}(s."table") r(relation)
  LEFT JOIN pg_catalog.pg_trigger g ON g.tgrelid = r.relation AND starts_with(g.tgname, %(prefix)s)
       -- The kind of a trigger is one word: what has more is of a tube whose name begins like this one.
       AND strpos(substr(g.tgname, length(%(prefix)s) + 1), '_') = 0
 WHERE s.tube = %(tube)s AND s.detached_at IS NULL AND EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = s."table")
 GROUP BY s.source

-- name: writers
-- Who has put pods into the tube and is not ended (the lock is let go after others see what was written), and whether it
-- may be committed and wait for a standby; of those whom we may not see, that is not known.
SELECT l.virtualtransaction::text,
       current_setting('synchronous_standby_names') <> '' AND (a.state IS NULL OR a.wait_event IS NOT DISTINCT FROM 'SyncRep')
  FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'relation' AND l.relation = %(pods)s::regclass AND l.mode = 'RowExclusiveLock' AND l.granted
   AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
   AND l.pid IS DISTINCT FROM pg_backend_pid()
