CREATE OR REPLACE FUNCTION @schema@.tube_attachment(relation regclass) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT string_agg(concat_ws(' ', i.inhrelid, i.xmin), ', ' ORDER BY i.inhrelid)
              FROM pg_partition_ancestors(tube_attachment.relation) a(relation) JOIN pg_inherits i ON i.inhrelid = a.relation);
END
$$;
COMMENT ON FUNCTION @schema@.tube_attachment(regclass) IS
    'Returns the versions of the attachment of a partition and of its parents: another text if one was attached again, '
    'because the partition may have other rows then.';
