CREATE OR REPLACE FUNCTION @schema@.tube_relations("table" regclass) RETURNS SETOF regclass
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
    WITH RECURSIVE tree AS (
        SELECT "table"::oid AS relation, 0 AS level
        UNION ALL
        SELECT i.inhrelid, t.level + 1 FROM tree t
          JOIN pg_inherits i ON i.inhparent = t.relation
          JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition
         -- A partition that is being detached concurrently receives no more rows of the parent.
         WHERE NOT i.inhdetachpending
    )
    SELECT t.relation::regclass FROM tree t ORDER BY t.level, t.relation;
END
$$;
COMMENT ON FUNCTION @schema@.tube_relations(regclass) IS 'Returns a table and all its partitions, the table first.';
