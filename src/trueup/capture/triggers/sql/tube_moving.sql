CREATE OR REPLACE FUNCTION @schema@.tube_moving() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- A number, for statements may nest; an error sets it back with the transaction or the savepoint.
    PERFORM set_config('@schema@.moving', (coalesce(nullif(current_setting('@schema@.moving', true), ''), '0')::integer
                       + CASE TG_WHEN WHEN 'BEFORE' THEN 1 ELSE -1 END)::text, true);
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION @schema@.tube_moving() IS
    'A trigger: counts the statements at work that may move rows between partitions.';
