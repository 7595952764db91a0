CREATE OR REPLACE FUNCTION @schema@.tube_key_renamed(s @schema@.sources) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- If a name does not exist any more, the trigger fails and uses the present name.
    RETURN s.key_place = @schema@.tube_key_place(s."table")
       AND s.key_names <> @schema@.tube_key_names(s."table", s.key_numbers)
       AND EXISTS (SELECT FROM unnest(s.key_names, s.key_numbers) u(name, n)
                     JOIN pg_attribute a ON a.attrelid = s."table" AND a.attname = u.name AND a.attnum <> u.n
                      AND NOT a.attisdropped);
END
$$;
COMMENT ON FUNCTION @schema@.tube_key_renamed(@schema@.sources) IS
    'Whether another column has the name of a key column now: the triggers record the values of that column.';
