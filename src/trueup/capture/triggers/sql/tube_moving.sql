CREATE OR REPLACE FUNCTION @schema@.tube_moving() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- One letter per running statement, because statements can be nested; a rollback resets it. The writer can set it to
    -- anything: every value but an empty one captures more than needed.
    PERFORM set_config('@schema@.moving', CASE TG_WHEN
        WHEN 'BEFORE' THEN coalesce(current_setting('@schema@.moving', true), '') || 'm'
        ELSE left(current_setting('@schema@.moving', true), -1) END, true);
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION @schema@.tube_moving() IS
    'Trigger function: counts the running statements that may move rows between partitions.';
-- Also if ALTER DEFAULT PRIVILEGES says otherwise: see tube_trigger_functions.
GRANT EXECUTE ON FUNCTION @schema@.tube_moving() TO PUBLIC;
