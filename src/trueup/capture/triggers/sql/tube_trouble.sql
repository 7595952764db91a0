CREATE OR REPLACE FUNCTION @schema@.tube_trouble(source integer, error text, lost boolean, place regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s @schema@.sources;
    is_known boolean;
BEGIN
    SELECT * INTO s FROM @schema@.sources x WHERE x.source = tube_trouble.source;
    -- One waiting control pod is enough: thousands of statements may fail in the same way.
    EXECUTE format('SELECT EXISTS (SELECT FROM %s WHERE op = ''!'' AND source = $1 AND (payload->>''lost'')::boolean = $2)',
                   @schema@.tube_pods_table(s.tube)) INTO is_known USING source, lost;
    IF NOT is_known THEN
        PERFORM @schema@.tube_control(source, coalesce(s.shard, 0), '!', jsonb_build_object(
            'type', 'trouble', 'table', place, 'error', error, 'lost', lost));
    END IF;
    RAISE WARNING 'tube %: touches of % %: %', s.tube, place,
        CASE WHEN lost THEN 'are lost, a backfill is needed' ELSE 'were recorded without the predicate' END, error;
END
$$;
COMMENT ON FUNCTION @schema@.tube_trouble(integer, text, boolean, regclass) IS
    'Reports an error of a trigger by a control pod and a warning; the statement that fired the trigger succeeds.';
