CREATE OR REPLACE FUNCTION @schema@.tube_shard_sql(source integer) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT coalesce(quote_literal(s.shard) || '::bigint', format(E'coalesce((CASE WHEN %s THEN (%s\n) END)::bigint, 0)',
                            coalesce(s.guard, @schema@.tube_type_checks(s."table", s.routing), 'true'), s.routing))
              FROM @schema@.sources s WHERE s.source = tube_shard_sql.source);
END
$$;
COMMENT ON FUNCTION @schema@.tube_shard_sql(integer) IS
    'Returns the shard expression of a row r: a number, or the routing expression, where NULL is shard 0.';
