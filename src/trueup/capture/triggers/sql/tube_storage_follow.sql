CREATE OR REPLACE FUNCTION @schema@.tube_storage_follow(tube text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s record;
BEGIN
    PERFORM @schema@.tube_triggers_follow(a.source)
       FROM (SELECT x.source FROM @schema@.sources x JOIN pg_class c ON c.oid = x."table"
              WHERE x.tube = tube_storage_follow.tube AND x.detached_at IS NULL ORDER BY x.source) a;
    FOR s IN SELECT x.source, @schema@.tube_rewritten(x.source) AS rewritten FROM @schema@.sources x
               JOIN pg_class c ON c.oid = x."table"
              WHERE x.tube = tube_storage_follow.tube AND x.detached_at IS NULL
                AND x.storage IS DISTINCT FROM @schema@.tube_storage(x."table") ORDER BY x.source LOOP
        IF s.rewritten IS NOT NULL THEN
            PERFORM @schema@.tube_incomplete(s.source, s.rewritten || ' may have been rewritten');
        END IF;
        UPDATE @schema@.sources x
           SET storage = @schema@.tube_storage_kept(x.storage, c.storage),
               -- A restored table may have other numbers.
               columns = CASE WHEN x.storage -> 'place' <> c.storage -> 'place' THEN (
                   SELECT jsonb_object_agg(a.attnum, o.col)
                     FROM jsonb_each(x.columns) o(number, col) JOIN pg_attribute a ON a.attname = o.col ->> 'name'
                    WHERE a.attrelid = x."table" AND a.attnum > 0 AND NOT a.attisdropped) ELSE x.columns END
          FROM (SELECT @schema@.tube_storage(y."table") AS storage FROM @schema@.sources y WHERE y.source = s.source) c
         WHERE x.source = s.source;
    END LOOP;
END
$$;
COMMENT ON FUNCTION @schema@.tube_storage_follow(text) IS
    'Stores the present files, columns and triggers of the attached tables of a tube, and notes which were rewritten or changed. '
    'Called periodically, so that changes of files and of columns at different times are not taken for a rewritten column.';
