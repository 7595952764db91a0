CREATE OR REPLACE FUNCTION @schema@.tube_reload_follow(tube text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s @schema@.sources;
    present jsonb;
    present_storage jsonb;
    is_same_place boolean;
    has_other_file boolean;
    reason text;
BEGIN
    PERFORM @schema@.tube_triggers_follow(a.source)
       FROM (SELECT x.source FROM @schema@.sources x JOIN pg_class c ON c.oid = x."table"
              WHERE x.tube = tube_reload_follow.tube AND x.detached_at IS NULL ORDER BY x.source) a;
    FOR s IN SELECT x.* FROM @schema@.sources x JOIN pg_class c ON c.oid = x."table"
              WHERE x.tube = tube_reload_follow.tube AND x.detached_at IS NULL ORDER BY x.source FOR UPDATE OF x LOOP
        present := @schema@.tube_columns(s."table");
        present_storage := @schema@.tube_storage(s."table");
        CONTINUE WHEN s.storage = present_storage AND s.columns = @schema@.tube_columns_kept(s.columns, present) AND s.incomplete IS NULL;
        is_same_place := s.storage -> 'place' = present_storage -> 'place';
        has_other_file := EXISTS (SELECT FROM jsonb_each(present_storage -> 'files') f WHERE s.storage -> 'files' -> f.key <> f.value);
        -- Renamed columns have the same values, and generated columns get theirs from the target itself.
        reason := coalesce(s.incomplete, @schema@.tube_rewritten(s.source) || ' may have been rewritten',
            CASE WHEN @schema@.tube_reattached(s.source) THEN 'a partition was detached and attached again' END, (
            SELECT string_agg(format('%I', a.attname), ', ' ORDER BY a.attnum) || ' is new or has another type'
              FROM jsonb_each(present) c(number, col)
              JOIN pg_attribute a ON a.attrelid = s."table" AND a.attnum = c.number::smallint
              LEFT JOIN jsonb_each(s.columns) o(number, col) USING (number)
             WHERE is_same_place AND CASE
                 WHEN a.attgenerated <> '' THEN false
                 -- Rows that existed have NULL in a new column, unless it was added with a default, which may have been
                 -- dropped since. A partitioned table has no rows of its own. The target may have the values of a dropped
                 -- column of this name.
                 WHEN o.col IS NULL THEN has_other_file
                      OR EXISTS (SELECT FROM jsonb_each(s.columns) d(number, col) WHERE d.col -> 'name' = c.col -> 'name')
                      OR EXISTS (SELECT FROM @schema@.tube_relations(s."table") r(relation) JOIN pg_attribute p ON p.attrelid = r.relation
                                  WHERE p.attname = a.attname AND p.atthasmissing)
                 ELSE o.col ? 'expression' OR o.col -> 'type' <> c.col -> 'type'
                      OR o.col -> 'parts' IS DISTINCT FROM c.col -> 'parts'
                         -- A new label changes no value.
                         AND coalesce(o.col -> 'parts' -> 'labels' <> (
                             SELECT jsonb_agg(l.label ORDER BY l.at)
                               FROM jsonb_array_elements(c.col -> 'parts' -> 'labels') WITH ORDINALITY l(label, at)
                              WHERE o.col -> 'parts' -> 'labels' @> l.label), true) END));
        IF reason IS NOT NULL THEN
            PERFORM @schema@.tube_backfill_schedule(tube, s."table", reason => reason);
        END IF;
        UPDATE @schema@.sources x
           SET columns = CASE WHEN is_same_place THEN @schema@.tube_columns_kept(s.columns, present) ELSE present END, storage = present_storage, incomplete = NULL, incomplete_at = NULL
         WHERE x.source = s.source;
    END LOOP;
END
$$;
COMMENT ON FUNCTION @schema@.tube_reload_follow(text) IS
    'For the change log of a sync: requests another copy of tables whose rows were changed without a statement on rows, '
    'such as by ALTER TABLE ... USING, and stores their present files and columns.';
