CREATE OR REPLACE FUNCTION @schema@.tube_triggers_changed(source integer) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s @schema@.sources;
    triggers jsonb;
BEGIN
    SELECT * INTO s FROM @schema@.sources x WHERE x.source = tube_triggers_changed.source;
    triggers := @schema@.tube_triggers(source);
    IF s.triggers IS NULL OR s.triggers = triggers THEN
        RETURN false;
    END IF;
    IF @schema@.tube_key_place(s."table") IS DISTINCT FROM s.storage ->> 'place' THEN
        -- A copy of the database: what happened to it since the last check is not known.
        RETURN true;
    END IF;
    RETURN EXISTS (
        SELECT FROM jsonb_each(s.triggers) known
         CROSS JOIN LATERAL jsonb_each(known.value) t
         WHERE known.key::oid IN (SELECT r::oid FROM @schema@.tube_relations(s."table") r)
           -- Of a partition that was attached again, the server has created triggers again: see tube_reattached and tube_passing.
           AND triggers -> known.key -> '' IS NOT DISTINCT FROM known.value -> ''
           AND triggers -> known.key -> t.key IS DISTINCT FROM t.value
    ) OR s.triggers ? s."table"::oid::text AND EXISTS (
        -- A new partition, or one that was attached again: the server created its triggers for each row when it or a parent
        -- of it was attached. Rows that were removed meanwhile are in the copy, if they were captured before.
        SELECT FROM @schema@.tube_relations(s."table") r(relation)
          JOIN pg_trigger g ON g.tgrelid = r.relation AND g.tgparentid <> 0
         WHERE (s.triggers -> r.relation::oid::text -> '') IS DISTINCT FROM (triggers -> r.relation::oid::text -> '')
           AND triggers -> r.relation::oid::text ? g.tgname
           AND NOT EXISTS (SELECT FROM pg_partition_ancestors(r.relation) a(relation)
                             JOIN pg_inherits i ON i.inhrelid = a.relation WHERE i.xmin = g.xmin));
END
$$;
COMMENT ON FUNCTION @schema@.tube_triggers_changed(integer) IS
    'Returns whether a trigger of an attached table has changed since it was checked, or the database is '
    'another one: changes meanwhile may not have been recorded, also if it is enabled again.';
