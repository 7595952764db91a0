CREATE OR REPLACE FUNCTION @schema@.tube_key_sql(
    s @schema@.sources, OUT is_integer boolean, OUT expression text, OUT names text[], OUT is_plain boolean
)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    numbers smallint[] := @schema@.tube_key_numbers(s);
    texts text[];
    types regtype[];
BEGIN
    IF s.row_id IS NOT NULL THEN
        is_integer := true;
        expression := s.row_id;
        names := '{}';
        is_plain := true;
        RETURN;
    END IF;
    SELECT array_agg(a.attname::text ORDER BY u.at), array_agg(c.text ORDER BY u.at), array_agg(c.base ORDER BY u.at)
      INTO names, texts, types
      FROM unnest(numbers) WITH ORDINALITY u(n, at)
      JOIN pg_attribute a ON a.attrelid = s."table" AND a.attnum = u.n AND NOT a.attisdropped
     CROSS JOIN @schema@.tube_column_sql(s."table", a.attname) c;
    IF cardinality(names) IS DISTINCT FROM cardinality(s.key_numbers) THEN
        RAISE EXCEPTION 'a key column of % does not exist any more', s."table" USING ERRCODE = 'undefined_column';
    END IF;
    is_integer := cardinality(types) = 1 AND types[1] IN ('smallint', 'integer', 'bigint');
    expression := CASE
        WHEN is_integer THEN format('(CASE WHEN true THEN r.%I ELSE NULL::bigint END)', names[1])
        WHEN cardinality(names) = 1 THEN texts[1]
        ELSE format('json_build_array(%s)::text', array_to_string(texts, ', '))
    END;
    -- Whether no setting of a session changes the text of a value.
    is_plain := types <@ '{smallint,integer,bigint,oid,text,varchar,bpchar,name,uuid,numeric,boolean}'::regtype[];
END
$$;
COMMENT ON FUNCTION @schema@.tube_key_sql(@schema@.sources) IS
    'Returns the key expression of a row r: a bigint, the text of the column, or a JSON array of texts.';
