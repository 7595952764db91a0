CREATE OR REPLACE FUNCTION @schema@.tube_triggers_store(source integer, places oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE @schema@.sources x
       SET triggers = x.triggers || coalesce((SELECT jsonb_object_agg(p.place, p.versions)
                                                FROM jsonb_each(@schema@.tube_triggers(x.source)) p(place, versions)
                                               WHERE p.place::oid = ANY (places)), '{}')
     WHERE x.source = tube_triggers_store.source;
END
$$;
COMMENT ON FUNCTION @schema@.tube_triggers_store(integer, oid[]) IS
    'Stores the versions of the triggers of some relations after a change of their own: nothing is noted.';
