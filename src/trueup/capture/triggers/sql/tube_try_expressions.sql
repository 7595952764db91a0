CREATE OR REPLACE FUNCTION @schema@.tube_try_expressions(source integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s @schema@.sources;
BEGIN
    SELECT * INTO s FROM @schema@.sources x WHERE x.source = tube_try_expressions.source;
    EXECUTE format('SELECT %s FROM ONLY %s r WHERE %s LIMIT 0',
                   @schema@.tube_shard_sql(source), s."table", @schema@.tube_where(source));
EXCEPTION WHEN syntax_error_or_access_rule_violation THEN
    RAISE EXCEPTION 'invalid predicate or routing for %: %', s."table", SQLERRM
        USING ERRCODE = SQLSTATE, HINT = 'use one expression over columns, with the schemas of functions and types; --filter '''' removes the predicate';
END
$$;
COMMENT ON FUNCTION @schema@.tube_try_expressions(integer) IS
    'Raises an error if a predicate or the routing of an attached table is not an expression over its rows.';
