CREATE OR REPLACE FUNCTION @schema@.tube_source(tube text, "table" regclass) RETURNS @schema@.sources
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_source @schema@.sources;
    place oid := "table";
BEGIN
    PERFORM @schema@.tube_get(tube);
    -- A partition belongs to the attached table above it.
    WHILE place IS NOT NULL LOOP
        SELECT s.* INTO found_source FROM @schema@.sources s
         WHERE s.tube = tube_source.tube AND s."table" = place::regclass AND s.detached_at IS NULL;
        IF FOUND THEN
            RETURN found_source;
        END IF;
        SELECT i.inhparent INTO place FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
         WHERE i.inhrelid = place AND c.relispartition;
    END LOOP;
    RAISE EXCEPTION '% is not attached to the tube %', "table", tube
        USING ERRCODE = 'undefined_object', HINT = 'tube_table_ensure_attached attaches a table; tube_list shows all';
END
$$;
COMMENT ON FUNCTION @schema@.tube_source(text, regclass) IS
    'How a table, or the partitioned table that it is a partition of, is attached to a tube; or an error.';
