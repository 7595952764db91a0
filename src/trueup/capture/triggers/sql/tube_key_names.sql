CREATE OR REPLACE FUNCTION @schema@.tube_key_names("table" regclass, numbers smallint[]) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN ARRAY(SELECT a.attname::text FROM unnest(numbers) WITH ORDINALITY u(n, at)
                   JOIN pg_attribute a ON a.attrelid = "table" AND a.attnum = u.n AND NOT a.attisdropped
                  ORDER BY u.at);
END
$$;
COMMENT ON FUNCTION @schema@.tube_key_names(regclass, smallint[]) IS
    'Returns the present names of columns by number; fewer if one does not exist any more.';
