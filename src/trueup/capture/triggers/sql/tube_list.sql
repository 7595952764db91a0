CREATE OR REPLACE FUNCTION @schema@.tube_list() RETURNS TABLE (
    tube text, partitions integer, tube_predicate text, pod_size integer, source integer, "table" text, shard bigint,
    routing text, predicate text, capture text, key text[], attached_at timestamptz, problem text,
    stale_columns text[]
)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
    SELECT t.tube, t.partitions, t.predicate, t.pod_size, s.source, coalesce(p."table", s."table"::text), s.shard, s.routing, s.predicate,
           s.capture,
           CASE WHEN s.source IS NOT NULL THEN @schema@.tube_key_names(s."table", @schema@.tube_key_numbers(s)) END,
           s.attached_at, p.problem, @schema@.tube_stale_columns(s.source)
      FROM @schema@.tubes t
      LEFT JOIN @schema@.sources s ON s.tube = t.tube AND s.detached_at IS NULL
      LEFT JOIN @schema@.tube_problems() p ON p.source = s.source
     ORDER BY t.tube, 6;
END
$$;
COMMENT ON FUNCTION @schema@.tube_list() IS
    'Returns one row per tube and attached table; a tube without tables has one row without a table.';
