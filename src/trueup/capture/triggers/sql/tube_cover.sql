CREATE OR REPLACE FUNCTION @schema@.tube_cover(source integer, is_new boolean, patience interval) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s @schema@.sources;
    statements text[];
    there regclass[];
    attached jsonb;
    place regclass;
    passed jsonb;
    gone boolean;
    found_rows bigint;
BEGIN
    SELECT * INTO s FROM @schema@.sources x WHERE x.source = tube_cover.source FOR UPDATE;
    -- Read first: a partition that is attached again meanwhile is noticed next time.
    attached := @schema@.tube_storage(s."table") -> 'attached';
    -- Before the relations are read: a partition that is created later is kept for the next call.
    WITH removed AS (DELETE FROM @schema@.passing p WHERE p.source = s.source RETURNING p.relation, p.attached)
    SELECT coalesce(jsonb_agg(r), '[]') INTO passed FROM (SELECT DISTINCT p.relation, p.attached FROM removed p) r;
    there := ARRAY(SELECT * FROM @schema@.tube_relations(s."table"));
    statements := @schema@.tube_trigger_ddl(source);
    IF is_new THEN
        UPDATE @schema@.sources x SET triggers = NULL WHERE x.source = s.source;
    END IF;
    PERFORM @schema@.tube_triggers_follow(source);
    IF cardinality(statements) > 0 THEN
        PERFORM @schema@.tube_ddl(statements, there, patience);
    END IF;
    IF NOT is_new THEN
        -- No statement touched the rows that were added or removed with a partition.
        gone := EXISTS (SELECT FROM unnest(s.covered) was(place) WHERE was.place <> ALL (there))
                OR @schema@.tube_reattached(source) OR @schema@.tube_passing(source, passed);
        FOR place IN SELECT c.oid::regclass FROM unnest(there) n(relation) JOIN pg_class c ON c.oid = n.relation
                      WHERE n.relation <> ALL (s.covered) AND c.relkind = 'r' LOOP
            -- A TRUNCATE of a new partition fires no trigger. It has given the table another file, and the row of the
            -- table in the catalog is newer than that of the partition.
            gone := gone OR EXISTS (SELECT FROM pg_class c JOIN pg_inherits i ON i.inhrelid = c.oid
                                     WHERE c.oid = place AND c.relfilenode <> c.oid AND c.xmin <> i.xmin);
            EXECUTE format('SELECT count(*) FROM (SELECT FROM ONLY %s LIMIT 10001) r', place) INTO found_rows;
            IF found_rows > 10000 THEN
                PERFORM @schema@.tube_backfill_schedule(s.tube, place, reason => 'a new partition');
            ELSIF found_rows > 0 THEN
                PERFORM @schema@.tube_pods_insert(s.tube, s."table", format('SELECT %s%s FROM ONLY %s r WHERE %s',
                    CASE WHEN s.shard IS NULL THEN @schema@.tube_shard_sql(source) || ', ' ELSE '' END,
                    (@schema@.tube_key_sql(s)).expression, place, @schema@.tube_where(source)));
            END IF;
        END LOOP;
        IF gone THEN
            PERFORM @schema@.tube_backfill_schedule(s.tube, s."table", reason => 'a partition is gone');
        END IF;
    END IF;
    UPDATE @schema@.sources x
       SET covered = there, storage = jsonb_set(x.storage, '{attached}', attached)
     WHERE x.source = s.source;
    RETURN cardinality(statements);
END
$$;
COMMENT ON FUNCTION @schema@.tube_cover(integer, boolean, interval) IS
    'Creates the missing triggers of an attached table and its partitions, '
    'touches the rows of new partitions, and schedules backfills after large new and after removed partitions.';
