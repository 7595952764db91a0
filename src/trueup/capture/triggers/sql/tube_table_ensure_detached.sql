CREATE OR REPLACE FUNCTION @schema@.tube_table_ensure_detached(
    tube text, "table" regclass, patience interval DEFAULT '30 s'
) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    number integer;
    statements text[];
    tables regclass[];
    each text;
    was_attached boolean := false;
BEGIN
    IF tube IS NULL THEN
        FOR each IN SELECT x.tube FROM @schema@.sources x JOIN @schema@.tubes t USING (tube)
                     WHERE x."table" = tube_table_ensure_detached."table" AND x.detached_at IS NULL AND t.sync IS NULL
                     ORDER BY x.tube LOOP
            was_attached := @schema@.tube_table_ensure_detached(each, "table", patience) OR was_attached;
        END LOOP;
        RETURN was_attached;
    END IF;
    SELECT x.source INTO number FROM @schema@.sources x WHERE x.tube = tube_table_ensure_detached.tube
       AND x."table" = tube_table_ensure_detached."table" AND x.detached_at IS NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- All triggers that call its functions, also on partitions detached since; clones are dropped with the original.
    SELECT array_agg(format('DROP TRIGGER IF EXISTS %I ON %s', g.tgname, g.tgrelid::regclass) ORDER BY g.tgrelid),
           array_agg(DISTINCT g.tgrelid::regclass)
      INTO statements, tables
      FROM pg_trigger g JOIN pg_proc p ON p.oid = g.tgfoid
     WHERE p.pronamespace = '@schema@'::regnamespace AND g.tgparentid = 0
       AND (p.proname IN ('touch_' || number, 'touch_' || number || '_row')
            OR p.proname = 'tube_moving' AND g.tgargs = convert_to(number::text, 'SQL_ASCII') || '\x00'::bytea);
    IF statements IS NOT NULL THEN
        PERFORM @schema@.tube_ddl(statements, tables, patience);
    END IF;
    EXECUTE format('DROP FUNCTION IF EXISTS @schema@.%I()', 'touch_' || number);
    EXECUTE format('DROP FUNCTION IF EXISTS @schema@.%I()', 'touch_' || number || '_row');
    DELETE FROM @schema@.backfills b WHERE b.source = number;
    DELETE FROM @schema@.passing p WHERE p.source = number;
    UPDATE @schema@.sources x SET detached_at = clock_timestamp(), covered = '{}' WHERE x.source = number;
    RETURN true;
END
$$;
COMMENT ON FUNCTION @schema@.tube_table_ensure_detached(text, regclass, interval) IS
    'Detaches a table from a tube and returns whether it was attached. Waiting pods stay. '
    'With NULL, from all tubes, except the change logs of syncs.';
