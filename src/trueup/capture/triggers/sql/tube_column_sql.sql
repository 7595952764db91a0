CREATE OR REPLACE FUNCTION @schema@.tube_column_sql(
    "table" regclass, "column" name, OUT base regtype, OUT value text, OUT type text, OUT text text
)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    col text := format('r.%I', "column");
    t pg_type;
    is_domain boolean := false;
BEGIN
    SELECT y.* INTO t FROM pg_attribute a JOIN pg_type y ON y.oid = a.atttypid
     WHERE a.attrelid = "table" AND a.attname = "column" AND NOT a.attisdropped;
    WHILE t.typtype = 'd' LOOP
        is_domain := true;
        SELECT y.* INTO t FROM pg_type y WHERE y.oid = t.typbasetype;
    END LOOP;
    base := t.oid;
    -- By its name in the catalog: "character" and "bit" without a length are types of length 1.
    type := (SELECT format('%I.%I', n.nspname, t.typname) FROM pg_namespace n WHERE n.oid = t.typnamespace);
    -- No expression may call a cast, whose function could be one of the type's owner and would run with the rights of
    -- the tube's owner; also if the type of the column is changed later. Types of users have other categories than
    -- scalar types, so the CASE fails when it is parsed; the planner removes it.
    IF t.typnamespace = 'pg_catalog'::regnamespace AND t.typcategory NOT IN ('A', 'R', 'C', 'E') THEN
        value := format('(CASE WHEN true THEN %s ELSE NULL::%s END)', col, type);
        text := value || '::text COLLATE "C"';
        RETURN;
    END IF;
    text := format('(CASE WHEN %1$s IS DISTINCT FROM NULL THEN concat(%1$s) END) COLLATE "C"', col);
    -- Other types than enums, ranges, composites and arrays are ordered by their text: the operators of their order are
    -- in a schema of users. A superuser is a member of every role.
    IF NOT is_domain AND (t.typtype <> 'b' OR EXISTS (SELECT FROM pg_type e WHERE e.typarray = t.oid)) AND (SELECT o.rolsuper OR pg_has_role(o.oid, current_user, 'MEMBER')
                                 OR NOT me.rolsuper AND pg_has_role(o.oid, 'MEMBER')
                            FROM pg_roles o, pg_roles me WHERE o.oid = t.typowner AND me.rolname = current_user) THEN
        value := format('(CASE WHEN array_eq(NULL::%s%s, ARRAY[%3$s]) IS NULL THEN %3$s END)', type,
                        CASE WHEN t.typcategory = 'A' THEN '' ELSE '[]' END, col);
    ELSE
        type := 'text COLLATE "C"';
        value := text;
    END IF;
END
$$;
COMMENT ON FUNCTION @schema@.tube_column_sql(regclass, name) IS
    'Returns the type of a column below any domain, the expression and the type by which a row r is ordered, and its text.';
