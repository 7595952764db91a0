CREATE OR REPLACE FUNCTION @schema@.tube_inherited(source integer, present jsonb DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s @schema@.sources;
BEGIN
    SELECT * INTO s FROM @schema@.sources x WHERE x.source = tube_inherited.source;
    IF s.capture <> 'statement' OR s.parents IS NULL THEN
        RETURN false;
    END IF;
    present := coalesce(present, @schema@.tube_parents(s."table"));
    -- Rows that were written through the parent after the last check that saw it are missing, too. In a restored or copied
    -- database the versions mean nothing: see tube_triggers_changed.
    RETURN (s.parents -> 'has_parent')::boolean OR (present -> 'has_parent')::boolean
        OR @schema@.tube_key_place(s."table") = s.storage ->> 'place' AND EXISTS (
            -- A column has its number of parents: ATTACH and DETACH, INHERIT and NO INHERIT change only that.
            SELECT FROM jsonb_each(present -> 'columns') c(number, version)
             WHERE s.parents -> 'columns' -> c.number <> c.version
               AND s.parents -> 'definitions' -> c.number = present -> 'definitions' -> c.number);
END
$$;
COMMENT ON FUNCTION @schema@.tube_inherited(integer, jsonb) IS
    'Returns whether an attached table was, or is, a partition or a child of another table since the last check: statements '
    'on that table fired no statement trigger. Also after an alteration of a column that left it as it was.';
