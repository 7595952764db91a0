CREATE OR REPLACE FUNCTION @schema@.tube_incomplete_problem(source integer) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (
        SELECT format('the copy may be incomplete (%s): run trueup tube backfill %s %s',
                      concat_ws('; ', s.incomplete, 'stale columns: ' || nullif(array_to_string(c.stale, ', '), ''),
                                c.rewritten || ' may have been rewritten',
                                CASE WHEN c.was_inherited AND s.incomplete IS NULL THEN 'it was a partition or a child of another table' END,
                                CASE WHEN c.is_changed AND s.incomplete IS NULL THEN @schema@.tube_triggers_reason(s.source) END),
                      s.tube, s."table")
          FROM @schema@.sources s
         CROSS JOIN LATERAL (SELECT @schema@.tube_stale_columns(s.source) AS stale,
                                    @schema@.tube_rewritten(s.source) AS rewritten,
                                    @schema@.tube_inherited(s.source) AS was_inherited,
                                    @schema@.tube_triggers_changed(s.source) AS is_changed) c
         WHERE s.source = tube_incomplete_problem.source
           AND (s.incomplete IS NOT NULL OR cardinality(c.stale) > 0 OR c.rewritten IS NOT NULL
                OR c.was_inherited OR c.is_changed));
END
$$;
COMMENT ON FUNCTION @schema@.tube_incomplete_problem(integer) IS
    'Returns why the copy of an attached table may lack changes which no touch will bring, and the cure; NULL if it does not.';
