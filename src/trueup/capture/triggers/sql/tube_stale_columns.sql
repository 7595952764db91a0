CREATE OR REPLACE FUNCTION @schema@.tube_stale_columns(source integer) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN ARRAY(
        SELECT format('%I (%s)', a.attname, CASE
                   WHEN was.col IS NULL THEN 'new'
                   WHEN was.col ->> 'name' <> a.attname THEN format('renamed from %I', was.col ->> 'name')
                   ELSE format('its type was %s', was.col ->> 'type') END)
          FROM @schema@.sources s
          JOIN pg_attribute a ON a.attrelid = s."table" AND a.attnum > 0 AND NOT a.attisdropped
         CROSS JOIN LATERAL (SELECT s.columns -> a.attnum::text AS col) was
         WHERE s.source = tube_stale_columns.source AND s.columns IS NOT NULL
           AND CASE WHEN was.col IS NULL
                    -- The rows that existed have a value that no statement wrote. Without a default it is NULL.
                    THEN a.atthasmissing OR a.atthasdef OR a.attidentity <> '' OR a.attgenerated <> ''
                    ELSE was.col <> jsonb_build_object('name', a.attname, 'type', a.atttypid::regtype::text) END
         ORDER BY a.attnum);
END
$$;
COMMENT ON FUNCTION @schema@.tube_stale_columns(integer) IS
    'Returns the columns of an attached table that were added with a default, renamed or changed since its last backfill: '
    'documents of rows that were not touched since lack their values.';
