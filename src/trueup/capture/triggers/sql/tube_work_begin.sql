CREATE OR REPLACE FUNCTION @schema@.tube_work_begin(tube text, partition integer, owner jsonb) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    generation bigint;
BEGIN
    PERFORM @schema@.tube_get(tube);
    INSERT INTO @schema@.workers AS w (tube, partition, generation, owner) VALUES (tube, partition, 1, owner)
    ON CONFLICT ON CONSTRAINT workers_pkey DO UPDATE
       SET generation = w.generation + 1, owner = EXCLUDED.owner, began_at = clock_timestamp(),
           seen_at = clock_timestamp(), ended_at = NULL, keys_per_second = 0, waiting = NULL
    RETURNING w.generation INTO generation;
    RETURN generation;
END
$$;
COMMENT ON FUNCTION @schema@.tube_work_begin(text, integer, jsonb) IS
    'Registers the holder of the lock of a partition and returns its generation. Older generations must not deliver or delete.';
