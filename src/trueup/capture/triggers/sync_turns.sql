-- name: has_state
SELECT coalesce(has_table_privilege(to_regclass('trueup.syncs'), 'SELECT, UPDATE'), false)
   AND to_regprocedure('trueup.sync_check_epoch(text, bigint)') IS NOT NULL

-- name: syncs
-- The syncs into this database that write to one of the tables, or to a table that it is a partition of.
SELECT DISTINCT s.sync, s.id
  FROM trueup.syncs s CROSS JOIN LATERAL unnest(s.tables) n(name)
  JOIN unnest(%(tables)s::text[]) t(name)
    ON to_regclass(n.name) = to_regclass(t.name)
    OR to_regclass(n.name) IN (SELECT relid FROM pg_partition_ancestors(to_regclass(t.name)))

-- name: has_pointer
SELECT to_regclass('trueup.switchover') IS NOT NULL

-- name: pointer
SELECT state FROM trueup.switchover WHERE sync_id = %(id)s

-- name: switchovers
SELECT sync_id FROM trueup.switchover

-- name: in_use
-- Switchovers whose applications use these tables in this database, or tables that they are partitions of.
SELECT o.sync, o.sync_id FROM trueup.switchover o
 WHERE o.state <> 'use_next' AND o.guarded && ARRAY(
    SELECT a.oid FROM unnest(%(tables)s::text[]) t(name)
     CROSS JOIN LATERAL (SELECT to_regclass(t.name)::oid UNION SELECT relid FROM pg_partition_ancestors(to_regclass(t.name))) a(oid))

-- name: has_log
SELECT coalesce(has_table_privilege(to_regclass('trueup_log.holders'), 'INSERT'), false)
   AND to_regprocedure('trueup_log.tube_hold(text, integer)') IS NOT NULL

-- name: log
-- Whether this database has the change log of the sync.
SELECT EXISTS (SELECT FROM trueup_log.tubes WHERE tube = %(sync)s AND sync = %(id)s)

-- name: hold
SELECT trueup_log.tube_hold(%(sync)s, 0)

-- name: holder
SELECT trueup_log.tube_holder(%(sync)s, 0)

-- name: take_over
-- Waits for open transactions of the former writer of the sync; its later ones fail.
UPDATE trueup.syncs SET epoch = epoch + 1 WHERE sync = %(sync)s AND id = %(id)s RETURNING epoch

-- name: check_epoch
SELECT trueup.sync_check_epoch(%(sync)s, %(epoch)s)
