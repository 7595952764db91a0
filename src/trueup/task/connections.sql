-- name: free
-- How many more sessions this role may open: on the server and by its own limit, and in this database (NULL: no limit).
-- A role without pg_read_all_stats also sees the sessions of other roles, without their details.
WITH me AS (SELECT oid, rolsuper, rolconnlimit FROM pg_roles WHERE rolname = current_user),
     sessions AS (
         SELECT usesysid, datid FROM pg_stat_activity
          WHERE datid IS NOT NULL AND coalesce(backend_type, 'client backend') = 'client backend')
SELECT concat_ws('/', pg_postmaster_start_time(), current_setting('port')) AS server,
       least(current_setting('max_connections')::int - (SELECT count(*) FROM sessions)
               - CASE WHEN me.rolsuper THEN 0
                      ELSE current_setting('superuser_reserved_connections')::int
                         + coalesce(current_setting('reserved_connections', true)::int, 0) END,
             CASE WHEN me.rolconnlimit >= 0 AND NOT me.rolsuper
                  THEN me.rolconnlimit - (SELECT count(*) FROM sessions s WHERE s.usesysid = me.oid) END)::int,
       (CASE WHEN d.datconnlimit >= 0 AND NOT me.rolsuper
             THEN d.datconnlimit - (SELECT count(*) FROM sessions s WHERE s.datid = d.oid) END)::int
  FROM me, pg_database d
 WHERE d.datname = current_database()
