CREATE OR REPLACE FUNCTION @schema@.tube_triggers_reason(source integer) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (
        SELECT CASE WHEN s.storage ->> 'place' = @schema@.tube_key_place(s."table")
                    THEN 'its triggers were missing, disabled or replaced' ELSE 'the database was restored or copied' END
          FROM @schema@.sources s WHERE s.source = tube_triggers_reason.source);
END
$$;
COMMENT ON FUNCTION @schema@.tube_triggers_reason(integer) IS
    'Returns what may have happened to an attached table for which tube_triggers_changed returns true.';
