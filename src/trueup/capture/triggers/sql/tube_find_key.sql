CREATE OR REPLACE FUNCTION @schema@.tube_find_key("table" regclass) RETURNS smallint[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_key smallint[];
BEGIN
    SELECT (i.indkey::smallint[])[0:i.indnkeyatts - 1] INTO found_key
      FROM pg_index i
     WHERE i.indrelid = "table" AND i.indisunique AND i.indisvalid AND i.indisready
       AND i.indpred IS NULL AND i.indexprs IS NULL
       AND NOT @schema@.tube_may_be_null(i.indrelid, (i.indkey::smallint[])[0:i.indnkeyatts - 1])
     ORDER BY i.indisprimary DESC, i.indnkeyatts, i.indexrelid
     LIMIT 1;
    -- Slices of an int2vector start at 0; return an array that starts at 1.
    RETURN ARRAY(SELECT u.n FROM unnest(found_key) WITH ORDINALITY u(n, at) ORDER BY u.at);
END
$$;
COMMENT ON FUNCTION @schema@.tube_find_key(regclass) IS
    'Returns the column numbers of the primary key, or of a unique index over columns whose NOT NULL is valid; empty without a key.';
