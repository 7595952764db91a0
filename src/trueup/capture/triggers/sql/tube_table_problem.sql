CREATE OR REPLACE FUNCTION @schema@.tube_table_problem(source integer) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s @schema@.sources;
    missing bigint;
    cure text;
BEGIN
    SELECT * INTO s FROM @schema@.sources x WHERE x.source = tube_table_problem.source;
    IF NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = s."table") THEN
        RETURN 'the table does not exist any more: run trueup tube detach';
    END IF;
    PERFORM @schema@.tube_table_check(s."table", s.capture, s.row_id IS NULL, (@schema@.tube_get(s.tube)).skips_applied);
    IF s.row_id IS NULL AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = s."table" AND i.indisunique AND i.indisvalid
                      AND i.indpred IS NULL AND i.indexprs IS NULL
                      AND (i.indkey::smallint[])[0:i.indnkeyatts - 1] <@ @schema@.tube_key_numbers(s)
                      AND NOT @schema@.tube_may_be_null(i.indrelid, (i.indkey::smallint[])[0:i.indnkeyatts - 1])) THEN
        RETURN 'its key has changed: run trueup tube attach, which schedules a backfill';
    ELSIF @schema@.tube_key_renamed(s) THEN
        RETURN 'a key column was renamed, and another column has its name: run trueup tube run or trueup tube attach';
    END IF;
    IF EXISTS (SELECT FROM unnest(s.covered) was(place)
                WHERE was.place NOT IN (SELECT * FROM @schema@.tube_relations(s."table"))) OR @schema@.tube_passing(source) THEN
        RETURN 'a partition was dropped or detached, and the copy still has its rows: run trueup tube run or trueup'
               ' tube attach';
    ELSIF @schema@.tube_reattached(source) THEN
        RETURN 'a partition was detached and attached again, and the copy may lack what was changed meanwhile: run trueup'
               ' tube run or trueup tube attach';
    END IF;
    missing := cardinality(@schema@.tube_trigger_ddl(source, true));
    IF missing > 0 AND NOT EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = s."table"
                                      AND g.tgname LIKE '@schema@\_' || s.tube || '\_%') THEN
        RETURN 'its triggers do not exist: run trueup tube attach, then trueup tube backfill';
    ELSIF missing > 0 THEN
        RETURN 'triggers are missing, disabled or replaced: run trueup tube attach, then trueup tube backfill';
    ELSIF EXISTS (SELECT FROM @schema@.tube_relations(s."table") r(place) WHERE r.place <> ALL (s.covered)) THEN
        RETURN 'a partition is new, and rows that it had before may be missing in the copy: run trueup tube run or trueup'
               ' tube attach';
    END IF;
    RETURN NULL;
EXCEPTION WHEN wrong_object_type OR undefined_column THEN
    GET STACKED DIAGNOSTICS cure = PG_EXCEPTION_HINT;
    RETURN concat_ws(': ', SQLERRM, nullif(cure, ''));
END
$$;
COMMENT ON FUNCTION @schema@.tube_table_problem(integer) IS
    'Returns why writes to an attached table may not be captured at present; NULL without a problem.';
