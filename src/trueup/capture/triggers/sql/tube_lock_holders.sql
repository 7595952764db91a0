CREATE OR REPLACE FUNCTION @schema@.tube_lock_holders(tables regclass[]) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN coalesce((
        SELECT string_agg(DISTINCT format('%s uses %s',
                   CASE WHEN l.pid IS NOT NULL
                        THEN format('server process %s (%s%s)', l.pid, a.usename, ', ' || nullif(a.application_name, ''))
                        ELSE format('prepared transaction %L', p.gid) END, l.relation::regclass), '; ')
          FROM pg_locks l
          LEFT JOIN pg_stat_activity a ON a.pid = l.pid
          LEFT JOIN pg_prepared_xacts p ON l.pid IS NULL AND l.virtualtransaction LIKE '%/' || p.transaction
         WHERE l.locktype = 'relation' AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
           AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
           AND l.relation = ANY (tables::oid[])), 'the locks have been released in the meantime');
END
$$;
COMMENT ON FUNCTION @schema@.tube_lock_holders(regclass[]) IS 'Describes the sessions that hold locks on these tables.';
