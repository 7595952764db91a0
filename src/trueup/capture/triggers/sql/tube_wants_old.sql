CREATE OR REPLACE FUNCTION @schema@.tube_wants_old(source integer) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT s.capture = 'row' OR s.routing IS NOT NULL OR s.predicate IS NOT NULL OR t.predicate IS NOT NULL
                   OR c.relkind = 'p' OR NOT (@schema@.tube_key_sql(s)).is_integer
              FROM @schema@.sources s JOIN @schema@.tubes t USING (tube) JOIN pg_class c ON c.oid = s."table"
             WHERE s.source = tube_wants_old.source);
END
$$;
COMMENT ON FUNCTION @schema@.tube_wants_old(integer) IS
    'Whether update triggers need the old rows. '
    'With an integer key, a fixed shard and no predicate, old rows matter only if the key changes: '
    'a trigger for these rows alone is cheaper.';
