CREATE OR REPLACE FUNCTION @schema@.tube_version() RETURNS integer
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT version FROM @schema@.installation);
END
$$;
COMMENT ON FUNCTION @schema@.tube_version() IS 'Returns the version of this installation.';
