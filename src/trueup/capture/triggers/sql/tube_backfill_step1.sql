CREATE OR REPLACE FUNCTION @schema@.tube_backfill_step1() RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN jsonb_build_object('xid', pg_current_xact_id(), 'start_seq', nextval('@schema@.pod_seq'),
                              'started_at', clock_timestamp());
END
$$;
COMMENT ON FUNCTION @schema@.tube_backfill_step1() IS
    'Step 1 of a backfill, in a transaction of its own: returns a number and a time. '
    'Pods with lower numbers are older than the backfill.';
