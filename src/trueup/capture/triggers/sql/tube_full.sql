CREATE OR REPLACE FUNCTION @schema@.tube_full(source integer, place regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s @schema@.sources;
    is_known boolean;
BEGIN
    SELECT * INTO s FROM @schema@.sources x WHERE x.source = tube_full.source;
    -- From now on each statement asks for the size.
    PERFORM setval(format('@schema@.%I', 'full_' || s.tube)::regclass, 1);
    -- In the transaction whose changes are not recorded, unless it sees the pod of another one: a snapshot with the changes
    -- has the pod too.
    EXECUTE format('SELECT EXISTS (SELECT FROM %s WHERE op = ''!'' AND payload->>''type'' = ''full'')',
                   @schema@.tube_pods_table(s.tube)) INTO is_known;
    IF NOT is_known THEN
        PERFORM @schema@.tube_control(source, coalesce(s.shard, 0), '!', jsonb_build_object('type', 'full', 'table', place,
            'error', 'the pods of the tube have reached their maximum size', 'lost', true));
        RAISE WARNING 'tube %: its pods have reached their maximum size: changes are not recorded any more', s.tube;
    END IF;
END
$$;
COMMENT ON FUNCTION @schema@.tube_full(integer, regclass) IS
    'Reports by a control pod that the pods of a tube have reached their maximum size, and changes are not recorded any more.';
