CREATE OR REPLACE FUNCTION @schema@.tube_ddl(statements text[], tables regclass[], patience interval) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '300ms' AS $$
DECLARE
    give_up timestamptz := clock_timestamp() + patience;
    began timestamptz;
    pause float8 := 0.05;
    statement text;
    message text;
BEGIN
    LOOP
        BEGIN
            -- Other sessions queue behind a waiting lock request: an attempt gets all locks quickly, or releases them all.
            began := clock_timestamp();
            FOREACH statement IN ARRAY statements LOOP
                PERFORM set_config('lock_timeout',
                    greatest(20, 300 - 1000 * extract(epoch FROM clock_timestamp() - began))::integer::text, true);
                EXECUTE statement;
            END LOOP;
            RETURN;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            message := SQLERRM;
        END;
        IF clock_timestamp() > give_up THEN
            RAISE EXCEPTION '%: %', concat_ws(', tried for ', message, nullif(patience, '0')), @schema@.tube_lock_holders(tables)
                USING ERRCODE = 'lock_not_available',
                      HINT = 'end these transactions, or try again when they are finished';
        END IF;
        PERFORM pg_sleep(pause * (0.5 + random()));
        pause := least(1, pause * 1.5);
    END LOOP;
END
$$;
COMMENT ON FUNCTION @schema@.tube_ddl(text[], regclass[], interval) IS
    'Runs statements that lock tables in use: all of them or none, with short attempts until the patience ends.';
