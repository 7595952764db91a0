CREATE OR REPLACE FUNCTION @schema@.tube_blockers(barrier xid8) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- Transaction locks are visible to all roles; they show the number without its epoch.
    RETURN coalesce((
        SELECT string_agg(DISTINCT CASE
                   WHEN p.gid IS NOT NULL THEN
                       format('prepared transaction %L of %s, prepared %s', p.gid, p.owner,
                              date_trunc('second', p.prepared))
                   ELSE format('server process %s (%s in database %s%s)%s', l.pid, a.usename, a.datname,
                               ', ' || nullif(a.application_name, ''),
                               ', open since ' || date_trunc('second', a.xact_start))
                   END, '; ')
          FROM pg_locks l
          LEFT JOIN pg_stat_activity a ON a.pid = l.pid
          LEFT JOIN pg_prepared_xacts p ON p.transaction = l.transactionid
         WHERE l.locktype = 'transactionid' AND l.granted AND l.mode = 'ExclusiveLock'
           AND age(l.transactionid) > age(barrier::xid)), 'they have finished in the meantime');
END
$$;
COMMENT ON FUNCTION @schema@.tube_blockers(xid8) IS 'Describes the open transactions before a number.';
