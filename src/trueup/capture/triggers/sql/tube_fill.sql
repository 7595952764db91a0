CREATE OR REPLACE FUNCTION @schema@.tube_fill(template text, "values" jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    pieces text[] := regexp_split_to_array(template, '\{\w+\}');
    names text[] := ARRAY(SELECT m[1] FROM regexp_matches(template, '\{(\w+)\}', 'g') m);
BEGIN
    RETURN (SELECT string_agg(pieces[n] || CASE WHEN n <= cardinality(names) THEN "values" ->> names[n] ELSE '' END, ''
                              ORDER BY n)
              FROM generate_series(1, cardinality(pieces)) n);
END
$$;
COMMENT ON FUNCTION @schema@.tube_fill(text, jsonb) IS
    'Replaces {names} of a template in one pass, so that inserted user expressions are never replaced again.';
