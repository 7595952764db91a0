CREATE OR REPLACE FUNCTION @schema@.tube_wants_old(source integer) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT s.capture = 'row' OR s.routing IS NOT NULL OR s.predicate IS NOT NULL OR t.predicate IS NOT NULL
                   OR c.relkind = 'p' OR NOT (@schema@.tube_key_sql(s."table", s.key_numbers)).is_integer
              FROM @schema@.sources s JOIN @schema@.tubes t USING (tube) JOIN pg_class c ON c.oid = s."table"
             WHERE s.source = tube_wants_old.source);
END
$$;
COMMENT ON FUNCTION @schema@.tube_wants_old(integer) IS
    'Whether updates need the rows as they were. '
    'With a key of integers, one shard and no predicate they matter only where the key itself changes: '
    'a trigger for just those rows is cheaper than keeping all of them.';
