CREATE OR REPLACE FUNCTION @schema@.tube_limit(tube text, bytes bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    flag text := format('@schema@.%I', 'full_' || tube);
BEGIN
    IF bytes IS NOT NULL AND to_regclass(flag) IS NULL THEN
        -- It has a value if the maximum size was reached: every session sees that at once, and at little cost. It is dropped
        -- with the pods.
        EXECUTE format('CREATE SEQUENCE %s OWNED BY %s.seq', flag, @schema@.tube_pods_table(tube));
        PERFORM @schema@.tube_make_private('SEQUENCE', flag);
    END IF;
    UPDATE @schema@.tubes t SET max_bytes = bytes WHERE t.tube = tube_limit.tube AND t.max_bytes IS DISTINCT FROM bytes;
    IF FOUND THEN
        PERFORM @schema@.tube_trigger_functions(x.source)
           FROM @schema@.sources x JOIN pg_class c ON c.oid = x."table"
          WHERE x.tube = tube_limit.tube AND x.detached_at IS NULL;
    END IF;
END
$$;
COMMENT ON FUNCTION @schema@.tube_limit(text, bigint) IS
    'Sets the maximum size of the pods of a tube in bytes; NULL: no limit. Needs no lock on the attached tables.';
