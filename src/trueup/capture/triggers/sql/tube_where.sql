CREATE OR REPLACE FUNCTION @schema@.tube_where(source integer) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parts text[];
BEGIN
    -- The line break ends a comment at the end of a predicate.
    -- The checks of types come first: the server parses conditions in their order.
    SELECT array_remove(ARRAY[
               CASE WHEN coalesce(t.predicate, s.predicate) IS NOT NULL THEN
                   coalesce(s.guard, @schema@.tube_type_checks(s."table", concat_ws(' ', t.predicate, s.predicate))) END,
               '(' || t.predicate || E'\n)', '(' || s.predicate || E'\n)'], NULL) INTO parts
      FROM @schema@.sources s JOIN @schema@.tubes t USING (tube) WHERE s.source = tube_where.source;
    RETURN coalesce(nullif(array_to_string(parts, ' AND '), ''), 'true');
END
$$;
COMMENT ON FUNCTION @schema@.tube_where(integer) IS
    'Returns the condition for rows of an attached table: the predicates of the tube and of the table.';
