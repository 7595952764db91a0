CREATE OR REPLACE FUNCTION @schema@.tube_reattached(source integer) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM @schema@.sources s
         CROSS JOIN LATERAL (SELECT @schema@.tube_storage(s."table") AS storage) present
         CROSS JOIN LATERAL jsonb_each(present.storage -> 'attached') a
         WHERE s.source = tube_reattached.source AND s.storage -> 'place' = present.storage -> 'place'
           -- Of a covered partition that was not there when `storage` was stored, nothing is stored.
           AND a.key::oid = ANY (s.covered::oid[]) AND s.storage ? 'attached'
           AND s.storage -> 'attached' -> a.key IS DISTINCT FROM a.value);
END
$$;
COMMENT ON FUNCTION @schema@.tube_reattached(integer) IS
    'Returns whether a partition of an attached table was detached and attached again: meanwhile its values could be changed '
    'without a trigger.';
