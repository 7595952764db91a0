CREATE OR REPLACE FUNCTION @schema@.tube_columns_kept(before jsonb, columns jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT columns || coalesce(jsonb_object_agg(o.number, o.col), '{}') FROM jsonb_each(before) o(number, col)
     WHERE NOT columns ? o.number
       AND NOT EXISTS (SELECT FROM jsonb_each(columns) c(number, col) WHERE c.col -> 'name' = o.col -> 'name')
$$;
COMMENT ON FUNCTION @schema@.tube_columns_kept(jsonb, jsonb) IS
    'Returns columns with those that were dropped before: a copy keeps their values, which a new column of the name does not have.';
