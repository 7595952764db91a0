CREATE OR REPLACE FUNCTION @schema@.tube_may_be_null("table" regclass, numbers smallint[]) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- A constraint NOT NULL that is NOT VALID does not hold for the rows that existed before it.
    RETURN EXISTS (SELECT FROM pg_attribute a
                    WHERE a.attrelid = "table" AND a.attnum = ANY (numbers)
                      AND (NOT a.attnotnull OR EXISTS (
                           SELECT FROM pg_constraint n
                            WHERE n.conrelid = "table" AND n.contype = 'n' AND a.attnum = ANY (n.conkey) AND NOT n.convalidated)));
END
$$;
COMMENT ON FUNCTION @schema@.tube_may_be_null(regclass, smallint[]) IS
    'Returns whether a row of the table may have NULL in one of these columns.';
