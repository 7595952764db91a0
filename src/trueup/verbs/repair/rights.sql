-- name: rights
-- One row: what this role may do with the table.
SELECT current_user::text AS role,
       pg_is_in_recovery() AS in_recovery,
       c.relkind::text AS kind,
       c.relhassubclass AND c.relkind = 'r' AS has_heirs,
       has_table_privilege(c.oid, 'DELETE') AS may_delete,
       (SELECT array_agg(a.attname::text) FROM pg_attribute a
         WHERE a.attrelid = c.oid AND a.attname = ANY (%(inserted)s::text[])
           AND NOT has_column_privilege(c.oid, a.attnum, 'INSERT')) AS no_insert,
       (SELECT array_agg(a.attname::text) FROM pg_attribute a
         WHERE a.attrelid = c.oid AND a.attname = ANY (%(updated)s::text[])
           AND NOT has_column_privilege(c.oid, a.attnum, 'UPDATE')) AS no_update,
       has_database_privilege(current_database(), 'TEMP') AS may_stage,
       (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = current_user) AS is_superuser,
       (SELECT count(*) FROM pg_trigger t
         WHERE NOT t.tgisinternal AND t.tgenabled <> 'D'
           AND t.tgrelid IN (SELECT c.oid UNION ALL SELECT p.relid FROM pg_partition_tree(c.oid) p)) AS triggers,
       -- Triggers that fire while ordinary ones are silenced, and rules that rewrite what is written.
       EXISTS (SELECT FROM pg_trigger t
                WHERE NOT t.tgisinternal AND t.tgenabled IN ('A', 'R')
                  AND t.tgrelid IN (SELECT c.oid UNION ALL SELECT p.relid FROM pg_partition_tree(c.oid) p))
       OR EXISTS (SELECT FROM pg_rewrite w WHERE w.ev_class = c.oid AND w.ev_type <> '1') AS always
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %(schema)s AND c.relname = %(table)s
