CREATE OR REPLACE FUNCTION @schema@.tube_key_follow(source integer) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s @schema@.sources;
    numbers smallint[];
    names text[];
    place text;
    is_wrong boolean;
BEGIN
    SELECT * INTO s FROM @schema@.sources x WHERE x.source = tube_key_follow.source;
    place := @schema@.tube_key_place(s."table");
    numbers := @schema@.tube_key_numbers(s);
    names := @schema@.tube_key_names(s."table", numbers);
    IF cardinality(names) <> cardinality(s.key_names)
       OR (s.key_place, s.key_numbers, s.key_names) = (place, numbers, names) THEN
        RETURN false;
    END IF;
    is_wrong := @schema@.tube_key_renamed(s);
    UPDATE @schema@.sources x SET key_place = place, key_numbers = numbers, key_names = names WHERE x.source = s.source;
    PERFORM @schema@.tube_trigger_functions(source);
    IF is_wrong THEN
        PERFORM @schema@.tube_backfill_schedule(s.tube, s."table", reason => 'a key column was renamed');
    END IF;
    RETURN true;
END
$$;
COMMENT ON FUNCTION @schema@.tube_key_follow(integer) IS
    'Stores the present names and numbers of the key columns of a table that was restored or whose columns were renamed, '
    'and returns whether they changed. Touches of a column with the name of a key column are replaced by a backfill.';
