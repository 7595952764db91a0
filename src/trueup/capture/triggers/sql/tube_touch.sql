CREATE OR REPLACE FUNCTION @schema@.tube_touch(tube text, "table" regclass, keys text[], shard bigint DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
@settings@ AS $$
DECLARE
    s @schema@.sources := @schema@.tube_source(tube, "table");
    key record;
    found_rows bigint;
BEGIN
    IF coalesce(shard, s.shard) IS NOT NULL THEN
        RETURN @schema@.tube_pods_insert(tube, "table", format('SELECT unnest(%L::text[])', keys), shard);
    END IF;
    BEGIN
        EXECUTE format('SELECT array_agg((%s)::text) FROM unnest($1) q(key)', @schema@.tube_key_checked_sql(s))
           INTO keys USING keys;
    EXCEPTION WHEN data_exception THEN
        PERFORM @schema@.tube_key_refused(format('keys of %s cannot be touched: %s', s."table", SQLERRM));
    END;
    -- The shard of a row is computed from the row, so the row must exist.
    key := @schema@.tube_key_sql(s);
    EXECUTE format('SELECT count(*) FROM %s r WHERE %s::text = ANY ($1)', s."table", key.expression)
       INTO found_rows USING keys;
    IF found_rows < (SELECT count(DISTINCT k) FROM unnest(keys) k) THEN
        RAISE EXCEPTION 'some of these keys do not exist in %, so their shard cannot be computed', s."table"
            USING ERRCODE = 'no_data_found', HINT = 'specify the shard with --shard';
    END IF;
    RETURN @schema@.tube_pods_insert(tube, "table", format('SELECT %s, %s FROM %s r WHERE %s::text = ANY (%L::text[])',
        @schema@.tube_shard_sql(s.source), key.expression, s."table", key.expression, keys));
END
$$;
COMMENT ON FUNCTION @schema@.tube_touch(text, regclass, text[], bigint) IS
    'Touches keys, each written as in a pod. Returns the number of pods.';
