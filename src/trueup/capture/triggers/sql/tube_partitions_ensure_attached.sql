CREATE OR REPLACE FUNCTION @schema@.tube_partitions_ensure_attached(
    tube text DEFAULT NULL, patience interval DEFAULT '30 s', only_source integer DEFAULT NULL
) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s record;
    changed integer := 0;
BEGIN
    FOR s IN SELECT x.source, x.covered, c.relkind = 'p' AS is_partitioned, ARRAY(SELECT * FROM @schema@.tube_relations(x."table")) AS there
               FROM @schema@.sources x JOIN pg_class c ON c.oid = x."table"
              WHERE x.detached_at IS NULL AND x.source = coalesce(only_source, x.source)
                AND (tube_partitions_ensure_attached.tube IS NULL OR x.tube = tube_partitions_ensure_attached.tube)
              ORDER BY x.source LOOP
        PERFORM @schema@.tube_key_follow(s.source);
        IF s.is_partitioned THEN
            -- It may have another owner.
            PERFORM @schema@.tube_clones_allow(s.source);
        END IF;
        -- Triggers that were disabled or dropped show that touches may be lost: they stay so until the table is attached again.
        CONTINUE WHEN cardinality(@schema@.tube_trigger_ddl(s.source, true)) > 0;
        IF NOT (s.covered @> s.there AND s.covered <@ s.there) OR @schema@.tube_reattached(s.source)
           OR @schema@.tube_passing(s.source) THEN
            PERFORM @schema@.tube_cover(s.source, false, patience);
            changed := changed + 1;
        END IF;
    END LOOP;
    RETURN changed;
END
$$;
COMMENT ON FUNCTION @schema@.tube_partitions_ensure_attached(text, interval, integer) IS
    'Creates the statement triggers of new partitions, which are captured row by row until then. '
    'Returns the number of tables with new or removed partitions. Call it periodically.';
