CREATE OR REPLACE FUNCTION @schema@.tube_moving() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- A counter, because statements can be nested; a rollback resets it.
    PERFORM set_config('@schema@.moving', (coalesce(nullif(current_setting('@schema@.moving', true), ''), '0')::integer
                       + CASE TG_WHEN WHEN 'BEFORE' THEN 1 ELSE -1 END)::text, true);
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION @schema@.tube_moving() IS
    'Trigger function: counts the running statements that may move rows between partitions.';
