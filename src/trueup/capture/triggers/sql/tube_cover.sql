CREATE OR REPLACE FUNCTION @schema@.tube_cover(source integer, is_new boolean, patience interval) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s @schema@.sources;
    statements text[];
    there regclass[];
    place regclass;
BEGIN
    SELECT * INTO s FROM @schema@.sources x WHERE x.source = tube_cover.source FOR UPDATE;
    there := ARRAY(SELECT * FROM @schema@.tube_relations(s."table"));
    statements := @schema@.tube_trigger_ddl(source);
    IF cardinality(statements) > 0 THEN
        PERFORM @schema@.tube_ddl(statements, there, patience);
    END IF;
    IF NOT is_new THEN
        -- No statement touched the rows that were added or removed with a partition.
        FOREACH place IN ARRAY there LOOP
            IF place <> ALL (s.covered) THEN
                PERFORM @schema@.tube_backfill_schedule(s.tube, place, reason => 'a new partition');
            END IF;
        END LOOP;
        IF EXISTS (SELECT FROM unnest(s.covered) was(place) WHERE was.place <> ALL (there)) THEN
            PERFORM @schema@.tube_backfill_schedule(s.tube, s."table", reason => 'a partition is gone');
        END IF;
    END IF;
    UPDATE @schema@.sources x SET covered = there WHERE x.source = s.source;
    RETURN cardinality(statements);
END
$$;
COMMENT ON FUNCTION @schema@.tube_cover(integer, boolean, interval) IS
    'Creates the missing triggers of an attached table and its partitions, '
    'and schedules backfills of new and removed partitions.';
