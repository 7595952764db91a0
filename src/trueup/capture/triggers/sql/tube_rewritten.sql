CREATE OR REPLACE FUNCTION @schema@.tube_rewritten(source integer) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s @schema@.sources;
    present jsonb;
BEGIN
    SELECT * INTO s FROM @schema@.sources x WHERE x.source = tube_rewritten.source;
    present := @schema@.tube_storage(s."table");
    -- ALTER COLUMN ... TYPE ... USING changes values without a trigger, also if the type stays the same. It changes both
    -- the files and the columns; TRUNCATE, VACUUM FULL and CLUSTER change only files, SET DEFAULT only a column.
    IF present = s.storage OR present -> 'place' IS DISTINCT FROM s.storage -> 'place'
       OR NOT EXISTS (SELECT FROM jsonb_each(present -> 'files') f WHERE s.storage -> 'files' -> f.key <> f.value) THEN
        RETURN NULL;
    END IF;
    RETURN (SELECT string_agg(format('%I', a.attname), ', ' ORDER BY a.attnum) FROM pg_attribute a
             WHERE a.attrelid = s."table" AND a.attnum > 0 AND NOT a.attisdropped
               AND s.storage -> 'columns' -> a.attnum::text <> present -> 'columns' -> a.attnum::text);
END
$$;
COMMENT ON FUNCTION @schema@.tube_rewritten(integer) IS
    'Returns the columns of an attached table whose values may have been changed by ALTER TABLE; NULL if there are none.';
