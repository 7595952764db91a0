CREATE OR REPLACE FUNCTION @schema@.tube_key_checked_sql(s @schema@.sources) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    key record := @schema@.tube_key_sql(s);
    width integer := cardinality(key.names);
    parts text;
    checks text := '';
BEGIN
    IF s.row_id IS NOT NULL THEN
        RETURN 'q.key::bigint';
    END IF;
    -- Each part is cast to the type of its column and back, so that the text is the one that the triggers write.
    SELECT string_agg(format('(%s)::%s AS %I', CASE
                          WHEN key.is_integer THEN 'q.key'
                          WHEN width = 1 THEN 'q.key::text'
                          ELSE format('q.key::text::json ->> %s', u.at - 1) END, c.type, u.name), ', ' ORDER BY u.at)
      INTO parts
      FROM unnest(key.names) WITH ORDINALITY u(name, at)
     CROSS JOIN @schema@.tube_column_sql(s."table", u.name::name) c;
    IF width > 1 THEN
        checks := format(
            ' WHEN CASE json_typeof(q.key::text::json) WHEN ''array'' THEN json_array_length(q.key::text::json) END'
            ' IS DISTINCT FROM %s THEN @schema@.tube_key_refused(%L || q.key::text)'
            ' WHEN EXISTS (SELECT FROM json_array_elements(q.key::text::json) e WHERE json_typeof(e) = ''null'')'
            ' THEN @schema@.tube_key_refused(''a part of the key is NULL: '' || q.key::text)'
            ' WHEN EXISTS (SELECT FROM json_array_elements(q.key::text::json) e WHERE json_typeof(e) IN (''array'', ''object''))'
            ' THEN @schema@.tube_key_refused(''a part of the key is not a text: '' || q.key::text)',
            width, format('the key has %s columns (%s), unlike ', width, array_to_string(key.names, ', ')));
    END IF;
    RETURN format('CASE WHEN q.key IS NULL THEN @schema@.tube_key_refused(''a key is NULL'')::%s%s'
                  ' ELSE (SELECT %s FROM (SELECT %s) r) END',
                  CASE WHEN key.is_integer THEN 'bigint' ELSE 'text' END, checks, key.expression, parts);
END
$$;
COMMENT ON FUNCTION @schema@.tube_key_checked_sql(@schema@.sources) IS
    'Returns the expression of a key as in pods for a key q.key of any origin; '
    'it raises a data exception if no row can have that key.';
