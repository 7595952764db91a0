-- name: triggers
-- By which triggers each attached table is captured: rows of the catalog, and the transactions that wrote them. One that
-- was switched off and on again is another than before.
SELECT s.source, md5(string_agg(concat_ws(':', g.oid, g.xmin, g.tgenabled), ',' ORDER BY g.oid))
  FROM {sources} s LEFT JOIN pg_catalog.pg_trigger g ON g.tgrelid = s."table" AND starts_with(g.tgname, %(prefix)s)
 WHERE s.tube = %(tube)s AND s.detached_at IS NULL
 GROUP BY s.source
