-- name: claim
SELECT {columns}
  FROM (SELECT x.*, sum(cardinality(x.ids) + coalesce(cardinality(x.keys), 0))
                    OVER (ORDER BY (x.op = 'B'), x.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
          FROM (SELECT p.* FROM {pods} p
                 WHERE {mine} AND NOT p.seq = ANY (%(skip)s) AND (NOT p.source = ANY (%(aside)s) OR p.op = '!')
                   AND (p.op <> '}}' OR NOT EXISTS (SELECT FROM {pods} b
                                                     WHERE {same} AND (b.op = 'B') = true AND b.seq < p.seq))
                 ORDER BY (p.op = 'B'), p.seq LIMIT %(most)s) x) p
 WHERE %(most_keys)s::bigint IS NULL OR coalesce(p.before, 0) < %(most_keys)s
 ORDER BY (p.op = 'B'), p.seq

-- name: store_passing
-- For the tables with partitions: others have none that tube_cover does not know.
SELECT {store}(s.source) FROM {sources} s JOIN pg_class c ON c.oid = s."table"
 WHERE s.source = ANY (%(sources)s) AND c.relkind = 'p' AND s.detached_at IS NULL
