CREATE OR REPLACE FUNCTION @schema@.tube_key_place("table" regclass) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    system text := '';
BEGIN
    -- With the rights of the owner: for all roles, the table is in the same place.
    BEGIN
        system := (SELECT c.system_identifier::text FROM pg_control_system() c);
    EXCEPTION WHEN insufficient_privilege THEN
        NULL; -- Some services hide it.
    END;
    RETURN concat_ws('/', system, (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()), "table"::oid);
END
$$;
COMMENT ON FUNCTION @schema@.tube_key_place(regclass) IS
    'Identifies a table whose column numbers are stored: server, database and table. A restored table is another one.';
