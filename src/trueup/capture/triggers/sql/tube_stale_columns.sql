CREATE OR REPLACE FUNCTION @schema@.tube_stale_columns(source integer) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s @schema@.sources;
    is_restored boolean;
BEGIN
    SELECT * INTO s FROM @schema@.sources x WHERE x.source = tube_stale_columns.source;
    -- A restored table may have other numbers.
    is_restored := s.storage ->> 'place' <> @schema@.tube_key_place(s."table");
    RETURN ARRAY(
        SELECT format('%I (%s)', a.attname, CASE
                   WHEN was.col IS NULL AND c.col ->> 'name' = ANY (dropped.names) THEN 'dropped and added again'
                   WHEN was.col IS NULL THEN 'new'
                   WHEN was.col ->> 'name' <> a.attname THEN format('renamed from %I', was.col ->> 'name')
                   WHEN was.col -> 'type' <> c.col -> 'type' THEN format('its type was %s', was.col ->> 'type')
                   WHEN was.col -> 'parts' IS DISTINCT FROM c.col -> 'parts' THEN format('its type %s was altered', was.col ->> 'type')
                   ELSE format('its expression was %s', coalesce(was.col ->> 'expression', 'none')) END)
          FROM jsonb_each(@schema@.tube_columns(s."table")) c(number, col)
          JOIN pg_attribute a ON a.attrelid = s."table" AND a.attnum = c.number::smallint
          LEFT JOIN LATERAL (SELECT o.col FROM jsonb_each(s.columns) o(number, col)
                              WHERE CASE WHEN is_restored THEN o.col -> 'name' = c.col -> 'name'
                                         ELSE o.number = c.number END) was ON true
         CROSS JOIN (SELECT ARRAY(SELECT o.col ->> 'name' FROM jsonb_each(s.columns) o(number, col)) AS names) dropped
         WHERE s.columns IS NOT NULL
           AND CASE WHEN was.col IS NULL
                    -- The rows that existed have a value that no statement wrote. Without a default it is NULL, and so it
                    -- is in the copy, unless that has the values of a dropped column of this name.
                    THEN c.col ->> 'name' = ANY (dropped.names) OR a.atthasmissing OR a.atthasdef OR a.attidentity <> '' OR a.attgenerated <> ''
                    ELSE was.col - 'parts' <> c.col - 'parts'
                         -- A new label changes no value.
                         OR was.col -> 'parts' IS DISTINCT FROM c.col -> 'parts'
                            AND coalesce(was.col -> 'parts' -> 'labels' <> (
                                SELECT jsonb_agg(l.label ORDER BY l.at)
                                  FROM jsonb_array_elements(c.col -> 'parts' -> 'labels') WITH ORDINALITY l(label, at)
                                 WHERE was.col -> 'parts' -> 'labels' @> l.label), true) END
         ORDER BY a.attnum);
END
$$;
COMMENT ON FUNCTION @schema@.tube_stale_columns(integer) IS
    'Returns the columns of an attached table that were added with a default or again, renamed or changed since its last backfill: '
    'documents of rows that were not touched since lack their values.';
