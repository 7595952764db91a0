CREATE OR REPLACE FUNCTION @schema@.tube_partitions_changed(tube text DEFAULT NULL, only_source integer DEFAULT NULL)
RETURNS SETOF integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s record;
BEGIN
    PERFORM @schema@.tube_parents_follow(tube, only_source);
    FOR s IN SELECT x.source, x.covered, ARRAY(SELECT * FROM @schema@.tube_relations(x."table")) AS there
               FROM @schema@.sources x JOIN pg_class c ON c.oid = x."table"
              WHERE x.detached_at IS NULL AND x.source = coalesce(only_source, x.source)
                AND x.tube = coalesce(tube_partitions_changed.tube, x.tube) ORDER BY x.source LOOP
        PERFORM @schema@.tube_key_follow(s.source);
        -- Triggers that were disabled or dropped show that touches may be lost: they stay so until the table is attached again.
        CONTINUE WHEN cardinality(@schema@.tube_trigger_ddl(s.source, true)) > 0;
        IF NOT (s.covered @> s.there AND s.covered <@ s.there) OR @schema@.tube_reattached(s.source)
           OR @schema@.tube_passing(s.source) THEN
            RETURN NEXT s.source;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION @schema@.tube_partitions_changed(text, integer) IS
    'Returns the attached tables with new or removed partitions. Stores renamed and restored keys, and notes tables with parents.';
