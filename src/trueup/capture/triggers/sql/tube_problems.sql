CREATE OR REPLACE FUNCTION @schema@.tube_problems(
    only_tube text DEFAULT NULL, only_source integer DEFAULT NULL
) RETURNS TABLE (
    source integer, tube text, "table" text, problem text, stops boolean, loses text
)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s @schema@.sources;
BEGIN
    FOR s IN SELECT x.* FROM @schema@.sources x
              WHERE x.detached_at IS NULL AND x.tube = coalesce(only_tube, x.tube)
                AND x.source = coalesce(only_source, x.source) ORDER BY x.source LOOP
        source := s.source;
        tube := s.tube;
        "table" := s."table"::text;
        stops := true;
        loses := NULL;
        IF NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = s."table") THEN
            "table" := coalesce(s.name, s."table"::text);
            problem := CASE
                WHEN to_regclass(s.name) IS NULL THEN
                    format('the table does not exist any more, its documents stay in the sink: run trueup tube detach %s %s',
                           s.tube, "table")
                ELSE format('the table was dropped, and another table has its name: run trueup tube attach %s %s, which'
                            ' schedules a backfill', s.tube, "table") END;
        ELSIF s.name <> "table" THEN
            problem := format('it was renamed from %s to %s, and the sink has its documents under the former name: rename it'
                              ' back, or run trueup tube attach %s %s and a backfill, and remove the former documents',
                              s.name, "table", s.tube, "table");
        ELSE
            BEGIN
                problem := @schema@.tube_table_problem(s.source);
                -- With another key, documents would have other names. Any other problem concerns later changes only.
                stops := problem LIKE 'its key%' OR problem LIKE 'a key column%' OR problem LIKE '%: it has no key%';
                loses := CASE WHEN problem LIKE 'its triggers %' OR problem LIKE 'triggers are %' THEN 'its triggers were missing, disabled or replaced'
                              WHEN problem LIKE '%: it is unlogged%' THEN 'it was unlogged'
                              WHEN problem LIKE '%: it is filled by a subscription%' THEN 'it was filled by a subscription' END;
                problem := coalesce(problem, @schema@.tube_incomplete_problem(s.source));
            EXCEPTION WHEN OTHERS THEN
                problem := SQLERRM;
            END;
        END IF;
        IF problem IS NOT NULL THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION @schema@.tube_problems(text, integer) IS
    'Returns the attached tables with a problem, whether it stops the delivery of their rows, and why touches are lost.';
