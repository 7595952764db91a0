CREATE OR REPLACE FUNCTION @schema@.tube_parents_follow(tube text DEFAULT NULL, only_source integer DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    number integer;
    present jsonb;
BEGIN
    FOR number IN SELECT x.source FROM @schema@.sources x JOIN pg_class c ON c.oid = x."table"
                   CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid) AS has_parent,
                                              @schema@.tube_column_versions(x."table") AS columns) v
                   WHERE x.detached_at IS NULL AND x.capture = 'statement'
                     AND x.tube = coalesce(tube_parents_follow.tube, x.tube) AND x.source = coalesce(only_source, x.source)
                     AND (x.parents -> 'columns' IS DISTINCT FROM v.columns
                          OR (x.parents -> 'has_parent')::boolean IS DISTINCT FROM v.has_parent
                          -- As long as it has one, but not each time.
                          OR v.has_parent AND coalesce((x.parents ->> 'noted_at')::timestamptz
                                                        < clock_timestamp() - interval '1 second', true))
                   ORDER BY x.source LOOP
        PERFORM FROM @schema@.sources x WHERE x.source = number FOR UPDATE;
        -- Read first: what changes meanwhile is noticed next time.
        present := (SELECT @schema@.tube_parents(x."table") FROM @schema@.sources x WHERE x.source = number);
        IF @schema@.tube_inherited(number, present) THEN
            PERFORM @schema@.tube_incomplete(number, 'it was a partition or a child of another table');
            present := present || jsonb_build_object('noted_at', clock_timestamp());
        END IF;
        UPDATE @schema@.sources x
           SET parents = jsonb_build_object('noted_at', x.parents -> 'noted_at') || present WHERE x.source = number;
    END LOOP;
END
$$;
COMMENT ON FUNCTION @schema@.tube_parents_follow(text, integer) IS
    'Stores the present columns of attached tables, and notes which of them were partitions or children of other tables.';
