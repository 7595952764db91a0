CREATE OR REPLACE FUNCTION @schema@.tube_where(source integer) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parts text[];
BEGIN
    -- The line break ends a comment at the end of a predicate.
    SELECT array_remove(ARRAY['(' || t.predicate || E'\n)', '(' || s.predicate || E'\n)',
                              @schema@.tube_type_checks(s."table", concat_ws(' ', t.predicate, s.predicate))], NULL) INTO parts
      FROM @schema@.sources s JOIN @schema@.tubes t USING (tube) WHERE s.source = tube_where.source;
    RETURN coalesce(nullif(array_to_string(parts, ' AND '), ''), 'true');
END
$$;
COMMENT ON FUNCTION @schema@.tube_where(integer) IS
    'Returns the condition for rows of an attached table: the predicates of the tube and of the table.';
