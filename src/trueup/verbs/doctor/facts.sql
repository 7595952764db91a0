-- name: node
SELECT current_setting('server_version') AS version_text,
       current_setting('server_version_num')::int AS version,
       pg_is_in_recovery() AS in_recovery,
       concat_ws('/', pg_postmaster_start_time(), inet_server_port()) AS server_id,
       concat_ws('|', current_setting('search_path'), current_setting('TimeZone'),
                 current_setting('default_transaction_read_only')) AS pinned,
       current_setting('max_connections')::int AS max_connections,
       CASE WHEN r.rolsuper THEN 0 ELSE current_setting('superuser_reserved_connections')::int
            + coalesce(current_setting('reserved_connections', true), '0')::int END AS reserved,
       (SELECT coalesce(sum(s.numbackends), 0)::int FROM pg_stat_database s) AS in_use,
       r.rolname::text AS role,
       r.rolreplication OR r.rolsuper AS may_replicate,
       CASE WHEN r.rolsuper THEN -1 ELSE r.rolconnlimit END AS role_limit,
       (SELECT count(*)::int FROM pg_stat_activity a WHERE a.usesysid = r.oid) AS role_in_use,
       CASE WHEN r.rolsuper THEN -1 ELSE d.datconnlimit END AS database_limit,
       (SELECT coalesce(sum(s.numbackends), 0)::int FROM pg_stat_database s WHERE s.datid = d.oid) AS database_in_use,
       current_setting('wal_level') AS wal_level,
       concat_ws(' and ', CASE WHEN current_setting('fsync') = 'off' THEN 'fsync = off' END,
                 CASE WHEN current_setting('full_page_writes') = 'off' THEN 'full_page_writes = off' END) AS unsafe,
       current_setting('max_replication_slots')::int AS max_slots,
       (SELECT count(*)::int FROM pg_replication_slots) AS slots,
       -- Without them, the log that a slot keeps has no limit. The second one is of version 18.
       current_setting('max_slot_wal_keep_size') AS slot_keeps,
       coalesce(current_setting('idle_replication_slot_timeout', true), '0') AS slot_timeout,
       (SELECT array_agg(format('%I (%s)', s.slot_name, pg_size_pretty(pg_wal_lsn_diff(now.lsn, s.restart_lsn)))
                         ORDER BY s.slot_name)
          FROM pg_replication_slots s,
               (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END) now (lsn)
         WHERE NOT s.active AND s.restart_lsn IS NOT NULL) AS idle_slots,
       current_setting('max_wal_senders')::int AS max_senders,
       current_setting('hot_standby_feedback')::bool AS feedback,
       current_setting('max_standby_streaming_delay') AS standby_delay,
       extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp())::float8 AS replay_age
  FROM pg_roles r, pg_database d
 WHERE r.rolname = current_user AND d.datname = current_database()

-- name: timeouts
SELECT name, setting::bigint AS now, reset_val::bigint AS usual
  FROM pg_settings
 WHERE name IN ('statement_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout', 'idle_session_timeout')
 ORDER BY name

-- name: clock
SELECT extract(epoch FROM clock_timestamp())::float8

-- name: statistics
SELECT max(c.reltuples)::float8 AS seen_rows,
       greatest(max(s.last_analyze), max(s.last_autoanalyze)) AS analysed_at,
       extract(epoch FROM clock_timestamp() - greatest(max(s.last_analyze), max(s.last_autoanalyze)))::float8 AS age,
       coalesce(sum(s.n_mod_since_analyze), 0)::bigint AS modified
  FROM (SELECT %(oid)s::oid AS relid UNION SELECT relid FROM pg_partition_tree(%(oid)s::oid::regclass)) part
  JOIN pg_class c ON c.oid = part.relid
  LEFT JOIN pg_stat_all_tables s ON s.relid = part.relid
 WHERE c.relkind IN ('r', 'm') OR part.relid = %(oid)s::oid

-- name: switchover
-- Facts of a node for a switchover: version, standby, privilege to create the schema, whether commits wait for the disk,
-- prepared transactions, and sessions with long transactions.
SELECT current_setting('server_version_num')::int,
       pg_is_in_recovery(),
       CASE WHEN to_regnamespace('trueup') IS NULL THEN has_database_privilege(current_database(), 'CREATE')
            ELSE has_schema_privilege('trueup', 'CREATE') END,
       current_setting('fsync') = 'on',
       (SELECT array_agg(gid ORDER BY prepared) FROM pg_prepared_xacts WHERE database = current_database()),
       (SELECT array_agg(format('process %%s (%%s)', pid, concat_ws(', ', usename, nullif(application_name, ''))) ORDER BY xact_start)
          FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
           AND xact_start < clock_timestamp() - make_interval(secs => %(long)s))
