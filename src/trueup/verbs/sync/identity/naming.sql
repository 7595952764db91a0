-- name: into
-- The syncs into this database, and ways back into it.
SELECT sync, id, source FROM trueup.syncs WHERE %(name)s IN (sync, regexp_replace(sync, %(suffix)s, ''))

-- name: from
-- The change logs of syncs from this database, and of ways back from it.
SELECT tube, sync, peer FROM trueup_log.tubes
 WHERE sync IS NOT NULL AND %(name)s IN (tube, regexp_replace(tube, %(suffix)s, ''))

-- name: pointers
SELECT sync, sync_id, split_part(pair, ' ', CASE WHEN is_first THEN 2 ELSE 1 END), is_first, next_name
  FROM trueup.switchover
 WHERE %(name)s IN (sync, named)
   AND (%(alone)s OR state = 'use_next' OR finished_at IS NULL)
