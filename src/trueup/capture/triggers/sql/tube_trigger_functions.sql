CREATE OR REPLACE FUNCTION @schema@.tube_trigger_functions(source integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s @schema@.sources;
    predicate text;
    settings text := '';
    each_row boolean;
    name text;
BEGIN
    SELECT * INTO s FROM @schema@.sources x WHERE x.source = tube_trigger_functions.source;
    SELECT concat_ws(' ', t.predicate, s.predicate, s.routing) INTO predicate FROM @schema@.tubes t WHERE t.tube = s.tube;
    -- Keys, predicates and routings must not depend on the settings of the writing session: see SETTINGS in install.py.
    IF predicate <> '' OR NOT (@schema@.tube_key_sql(s)).is_plain THEN
        settings := $settings$@settings@$settings$;
    END IF;
    -- A literal like '12:00 EST'. Only then, because the server reads a file each time. The query takes ten milliseconds.
    IF predicate <> '' THEN
        IF EXISTS (SELECT FROM pg_timezone_abbrevs a WHERE a.abbrev NOT IN ('GMT', 'UCT', 'UT', 'UTC', 'Z', 'ZULU')
                      AND predicate ~* ('(^|[^[:alpha:]_])' || a.abbrev || '($|[^[:alpha:]_])')) THEN
            settings := settings || $settings$ SET timezone_abbreviations = 'Default'$settings$;
        END IF;
    END IF;
    FOREACH each_row IN ARRAY ARRAY[false, true] LOOP
        name := format('@schema@.%I', 'touch_' || source || CASE WHEN each_row THEN '_row' ELSE '' END);
        -- With the rights of the owner of the tube: writers of the table need no rights on it.
        EXECUTE format(
            'CREATE OR REPLACE FUNCTION %s() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER'
            ' SET search_path = pg_catalog, pg_temp %s AS %L',
            name, settings, @schema@.tube_trigger_body(source, each_row));
        -- Another table with this trigger could make it run any code.
        PERFORM @schema@.tube_make_private('FUNCTION', name || '()');
        IF each_row AND (SELECT c.relkind = 'p' FROM pg_class c WHERE c.oid = s."table") THEN
            -- The server creates triggers of new partitions with the rights of the owner of the partitioned table, who may be
            -- any role. It refuses other tables itself, and no role can name it without USAGE on the schema.
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s() TO PUBLIC', name);
        END IF;
        EXECUTE format('COMMENT ON FUNCTION %s() IS %L', name,
                       format('Created by trueup: records touches of %s in the tube %s.', s."table", s.tube));
    END LOOP;
END
$$;
COMMENT ON FUNCTION @schema@.tube_trigger_functions(integer) IS
    'Creates or replaces the trigger functions of an attached table; needs no lock on the table.';
