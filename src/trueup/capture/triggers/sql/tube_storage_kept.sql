CREATE OR REPLACE FUNCTION @schema@.tube_storage_kept(before jsonb, storage jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN before -> 'place' = storage -> 'place' AND before ? 'attached'
           THEN jsonb_set(storage, '{attached}', before -> 'attached') ELSE storage END
$$;
COMMENT ON FUNCTION @schema@.tube_storage_kept(jsonb, jsonb) IS
    'Returns a storage with the partitions of the one before: tube_cover stores these, and schedules the backfill that they need.';
