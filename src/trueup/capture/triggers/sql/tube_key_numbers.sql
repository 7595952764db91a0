CREATE OR REPLACE FUNCTION @schema@.tube_key_numbers(s @schema@.sources) RETURNS smallint[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- In the same table, a renamed column keeps its number. After a dump and restore, a column keeps its name, and its number
    -- may be that of another column: dropped columns are not dumped.
    IF s.key_place = @schema@.tube_key_place(s."table") THEN
        RETURN s.key_numbers;
    END IF;
    RETURN ARRAY(SELECT a.attnum FROM unnest(s.key_names) WITH ORDINALITY u(name, at)
                   JOIN pg_attribute a ON a.attrelid = s."table" AND a.attname = u.name AND NOT a.attisdropped
                  ORDER BY u.at);
END
$$;
COMMENT ON FUNCTION @schema@.tube_key_numbers(@schema@.sources) IS
    'Returns the present numbers of the key columns of an attached table; fewer if one does not exist any more.';
