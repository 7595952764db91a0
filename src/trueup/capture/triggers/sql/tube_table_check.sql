CREATE OR REPLACE FUNCTION @schema@.tube_table_check(
    "table" regclass, capture text, needs_key boolean DEFAULT true, skips_applied boolean DEFAULT false
) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    c record;
    why text;
    hint text := 'attach an ordinary or a partitioned table';
BEGIN
    SELECT r.relkind, r.relpersistence, r.relispartition, r.relowner, n.nspname INTO c
      FROM pg_class r JOIN pg_namespace n ON n.oid = r.relnamespace WHERE r.oid = "table";
    IF NOT FOUND THEN
        why := 'the table does not exist';
    ELSIF c.relkind NOT IN ('r', 'p') THEN
        why := 'it is ' || coalesce((jsonb_build_object('v', 'a view', 'm', 'a materialized view', 'f', 'a foreign table',
            'S', 'a sequence', 'i', 'an index', 'c', 'a type', 't', 'a TOAST table'))->>c.relkind::text, 'not a table');
    ELSIF c.relpersistence = 't' THEN
        why := 'it is a temporary table';
    ELSIF c.relpersistence = 'u' THEN
        why := 'it is unlogged: after a crash it is empty, and no trigger fires';
        hint := 'run ALTER TABLE ... SET LOGGED';
    ELSIF c.nspname IN ('pg_catalog', 'information_schema', '@schema@') THEN
        why := 'it is a system table or a table of the tubes';
    ELSIF NOT pg_has_role(c.relowner, 'USAGE') THEN
        why := format('only its owner %s can create triggers that always fire', c.relowner::regrole);
        hint := 'attach as the owner, or as a member of that role';
    ELSIF needs_key AND cardinality(@schema@.tube_find_key("table")) = 0 THEN
        why := 'it has no key';
        hint := 'create a primary key, or a unique index over columns whose NOT NULL is valid';
    ELSIF EXISTS (SELECT FROM pg_inherits i JOIN pg_class k ON k.oid = i.inhrelid
                   WHERE i.inhparent = "table" AND NOT k.relispartition) THEN
        why := 'other tables inherit from it: its key does not identify a single row';
        hint := 'use partitions instead';
    ELSIF capture = 'statement' THEN
        why := CASE
            WHEN c.relispartition THEN 'it is a partition: statements on the partitioned table would not be captured'
            WHEN EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = "table") THEN
                'it inherits from another table: statements on that table would not be captured'
            WHEN NOT skips_applied AND EXISTS (SELECT FROM pg_subscription_rel s
                          WHERE s.srrelid IN (SELECT * FROM @schema@.tube_relations("table"))) THEN
                'it is filled by a subscription, which does not fire statement triggers'
        END;
        hint := 'attach the parent table, or use --capture row (slower)';
    END IF;
    IF why IS NOT NULL THEN
        RAISE EXCEPTION '% cannot be captured: %', "table", why USING ERRCODE = 'wrong_object_type', HINT = hint;
    END IF;
END
$$;
COMMENT ON FUNCTION @schema@.tube_table_check(regclass, text, boolean, boolean) IS
    'Raises an error if writes to the table cannot be captured completely.';
