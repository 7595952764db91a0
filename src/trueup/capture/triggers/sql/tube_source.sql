CREATE OR REPLACE FUNCTION @schema@.tube_source(tube text, "table" regclass) RETURNS @schema@.sources
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_source @schema@.sources;
    place oid := "table";
BEGIN
    PERFORM @schema@.tube_get(tube);
    -- For a partition, use the attached partitioned table.
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
        USING ERRCODE = 'undefined_object', HINT = 'attach it with trueup tube attach; trueup tube list shows all attached tables';
END
$$;
COMMENT ON FUNCTION @schema@.tube_source(text, regclass) IS
    'Returns the source of a table, or of its partitioned table; raises an error if it is not attached to the tube.';
