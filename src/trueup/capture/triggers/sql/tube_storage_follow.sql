CREATE OR REPLACE FUNCTION @schema@.tube_storage_follow(tube text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    number integer;
    present jsonb;
    rewritten text;
BEGIN
    PERFORM @schema@.tube_triggers_follow(a.source)
       FROM (SELECT x.source FROM @schema@.sources x JOIN pg_class c ON c.oid = x."table"
              WHERE x.tube = tube_storage_follow.tube AND x.detached_at IS NULL ORDER BY x.source) a;
    FOR number IN SELECT x.source FROM @schema@.sources x JOIN pg_class c ON c.oid = x."table"
                   WHERE x.tube = tube_storage_follow.tube AND x.detached_at IS NULL
                     AND x.storage IS DISTINCT FROM @schema@.tube_storage(x."table") ORDER BY x.source LOOP
        -- Read first: what changes meanwhile is noticed next time.
        present := (SELECT @schema@.tube_storage(x."table") FROM @schema@.sources x WHERE x.source = number);
        rewritten := @schema@.tube_rewritten(number);
        IF rewritten IS NOT NULL THEN
            PERFORM @schema@.tube_incomplete(number, rewritten || ' may have been rewritten');
        END IF;
        UPDATE @schema@.sources x
           SET storage = @schema@.tube_storage_kept(x.storage, present),
               -- A restored table may have other numbers.
               columns = CASE WHEN x.storage -> 'place' <> present -> 'place' THEN (
                   SELECT jsonb_object_agg(a.attnum, o.col)
                     FROM jsonb_each(x.columns) o(number, col) JOIN pg_attribute a ON a.attname = o.col ->> 'name'
                    WHERE a.attrelid = x."table" AND a.attnum > 0 AND NOT a.attisdropped) ELSE x.columns END
         WHERE x.source = number;
    END LOOP;
END
$$;
COMMENT ON FUNCTION @schema@.tube_storage_follow(text) IS
    'Stores the present files, columns and triggers of the attached tables of a tube, and notes which were rewritten or changed. '
    'Called periodically, so that changes of files and of columns at different times are not taken for a rewritten column.';
