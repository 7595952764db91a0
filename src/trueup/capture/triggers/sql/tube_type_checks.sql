CREATE OR REPLACE FUNCTION @schema@.tube_type_checks("table" regclass, expression text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    col record;
    checks text[] := '{}';
BEGIN
    -- An expression over a column may call casts of the owner of its type, with the rights of the tube's owner. The owner of
    -- a table can give a column another type: then each check fails when the statement is parsed. The planner removes it.
    FOR col IN SELECT a.attname, c.* FROM pg_attribute a CROSS JOIN @schema@.tube_column_sql("table", a.attname) c
                WHERE a.attrelid = "table" AND a.attnum > 0 AND NOT a.attisdropped
                  AND expression ~* ('(^|[^[:alnum:]_])' || regexp_replace(a.attname, '([^[:alnum:]_])', '\\\1', 'g')
                                     || '($|[^[:alnum:]_])')
                ORDER BY a.attnum LOOP
        IF col.type = 'text COLLATE "C"' THEN
            RAISE EXCEPTION 'the expression % names the column % of %: the owner of its type % could run code with the rights of %',
                            quote_literal(expression), col.attname, "table", col.base, current_user
                USING ERRCODE = 'insufficient_privilege',
                      HINT = 'install the tubes as the owner of the type or as a member of its role, or leave out the column';
        END IF;
        checks := checks || format('(%s IS NULL OR true)', col.value);
    END LOOP;
    RETURN nullif(array_to_string(checks, ' AND '), '');
END
$$;
COMMENT ON FUNCTION @schema@.tube_type_checks(regclass, text) IS
    'Returns conditions that are true while the columns named in an expression have their present types; NULL if it names none.';
