CREATE OR REPLACE FUNCTION @schema@.tube_work_note(
    tube text, partition integer, generation bigint, pods bigint DEFAULT 0, keys bigint DEFAULT 0,
    troubles bigint DEFAULT 0, keys_per_second float8 DEFAULT NULL, waiting text DEFAULT NULL, ends boolean DEFAULT false
) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE @schema@.workers w
       SET seen_at = clock_timestamp(), pods = w.pods + tube_work_note.pods, keys = w.keys + tube_work_note.keys,
           troubles = w.troubles + tube_work_note.troubles,
           keys_per_second = coalesce(tube_work_note.keys_per_second, w.keys_per_second),
           waiting = tube_work_note.waiting, ended_at = CASE WHEN ends THEN clock_timestamp() END
     WHERE w.tube = tube_work_note.tube AND w.partition = tube_work_note.partition
       AND w.generation = tube_work_note.generation;
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION @schema@.tube_work_note(text, integer, bigint, bigint, bigint, bigint, float8, text, boolean) IS
    'Records a heartbeat of a worker and its progress since the last one. Returns false if its generation is outdated.';
