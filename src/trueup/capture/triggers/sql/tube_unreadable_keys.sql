CREATE OR REPLACE FUNCTION @schema@.tube_unreadable_keys(source integer, keys text[]) RETURNS SETOF text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s @schema@.sources;
    query text;
    key text;
BEGIN
    SELECT * INTO s FROM @schema@.sources x WHERE x.source = tube_unreadable_keys.source;
    query := format('SELECT count(%s) FROM unnest($1) q(key)', @schema@.tube_key_checked_sql(s));
    BEGIN
        EXECUTE query USING keys;
        RETURN;
    EXCEPTION WHEN data_exception THEN
        NULL;
    END;
    FOREACH key IN ARRAY keys LOOP
        BEGIN
            EXECUTE query USING ARRAY[key];
        EXCEPTION WHEN data_exception THEN
            RETURN NEXT key;
        END;
    END LOOP;
END
$$;
COMMENT ON FUNCTION @schema@.tube_unreadable_keys(integer, text[]) IS
    'Returns the keys that no row of an attached table can have, for example because the table had another key.';
