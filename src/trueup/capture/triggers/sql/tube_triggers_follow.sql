CREATE OR REPLACE FUNCTION @schema@.tube_triggers_follow(source integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- Read first: what changes meanwhile is noticed next time.
    present jsonb := @schema@.tube_triggers(source);
BEGIN
    IF @schema@.tube_triggers_changed(source) THEN
        PERFORM @schema@.tube_incomplete(source, 'its triggers were missing, disabled or replaced');
    END IF;
    UPDATE @schema@.sources x SET triggers = present
     WHERE x.source = tube_triggers_follow.source AND x.triggers IS DISTINCT FROM present;
END
$$;
COMMENT ON FUNCTION @schema@.tube_triggers_follow(integer) IS
    'Stores the present versions of the triggers of an attached table, and notes if they have changed since they were stored.';
