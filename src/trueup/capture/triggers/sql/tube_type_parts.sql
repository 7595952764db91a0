CREATE OR REPLACE FUNCTION @schema@.tube_type_parts(type oid) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t record;
BEGIN
    SELECT y.typtype, y.typrelid, y.typbasetype, CASE WHEN y.typcategory = 'A' THEN y.typelem ELSE 0 END AS element
      INTO t FROM pg_type y WHERE y.oid = type;
    RETURN CASE
        WHEN t.typtype = 'e' THEN (SELECT jsonb_build_object('labels', jsonb_agg(e.enumlabel ORDER BY e.enumsortorder))
                                     FROM pg_enum e WHERE e.enumtypid = type)
        WHEN t.typtype = 'c' THEN (
            -- An attribute that is dropped and added again has another number.
            SELECT jsonb_object_agg(a.attnum, coalesce(@schema@.tube_type_parts(a.atttypid), to_jsonb(a.atttypid::regtype::text)))
              FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped)
        WHEN t.typtype = 'd' THEN @schema@.tube_type_parts(t.typbasetype)
        WHEN t.typtype IN ('r', 'm') THEN (SELECT @schema@.tube_type_parts(r.rngsubtype) FROM pg_range r
                                            WHERE type IN (r.rngtypid, r.rngmultitypid))
        WHEN t.element <> 0 THEN @schema@.tube_type_parts(t.element) END;
END
$$;
COMMENT ON FUNCTION @schema@.tube_type_parts(oid) IS
    'Returns what ALTER TYPE can change in the values of a type: labels, attributes; NULL if there is nothing.';
