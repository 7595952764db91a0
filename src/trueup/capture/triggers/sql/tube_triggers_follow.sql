CREATE OR REPLACE FUNCTION @schema@.tube_triggers_follow(source integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    present jsonb := @schema@.tube_triggers(source);
BEGIN
    IF EXISTS (SELECT FROM @schema@.sources x WHERE x.source = tube_triggers_follow.source AND x.triggers = present) THEN
        RETURN;
    END IF;
    -- Another session may be creating triggers: those that it has stored are known.
    PERFORM FROM @schema@.sources x WHERE x.source = tube_triggers_follow.source FOR UPDATE;
    -- Read first: what changes meanwhile is noticed next time.
    present := @schema@.tube_triggers(source);
    IF @schema@.tube_triggers_changed(source) THEN
        PERFORM @schema@.tube_incomplete(source, @schema@.tube_triggers_reason(source));
    END IF;
    UPDATE @schema@.sources x SET triggers = present
     WHERE x.source = tube_triggers_follow.source AND x.triggers IS DISTINCT FROM present;
END
$$;
COMMENT ON FUNCTION @schema@.tube_triggers_follow(integer) IS
    'Stores the present versions of the triggers of an attached table, and notes if they have changed since they were stored.';
