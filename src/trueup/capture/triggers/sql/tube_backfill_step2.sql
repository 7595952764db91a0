CREATE OR REPLACE FUNCTION @schema@.tube_backfill_step2(patience interval DEFAULT '5 min') RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    give_up timestamptz := clock_timestamp() + patience;
    barrier xid8;
    pause float8 := 0.01;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION 'tube_backfill_step2 needs a transaction of its own, with the isolation level READ COMMITTED'
            USING ERRCODE = 'active_sql_transaction', HINT = 'commit after each step of the backfill';
    END IF;
    -- Assign a transaction number: the upper bound of a snapshot can be below running transactions.
    barrier := pg_current_xact_id();
    -- The snapshot contains the transactions of all roles, including prepared ones.
    WHILE pg_snapshot_xmin(pg_current_snapshot()) < barrier LOOP
        IF clock_timestamp() > give_up THEN
            RAISE EXCEPTION 'older transactions are still open after %: %',
                patience, @schema@.tube_blockers(barrier)
                USING ERRCODE = 'lock_not_available', HINT = 'end them, or try again when they are finished';
        END IF;
        PERFORM pg_sleep(pause);
        pause := least(1, pause * 1.5);
    END LOOP;
END
$$;
COMMENT ON FUNCTION @schema@.tube_backfill_step2(interval) IS
    'Step 2 of a backfill, in a transaction of its own: waits until all older transactions are finished.';
