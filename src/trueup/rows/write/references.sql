-- name: deferrable
-- Deferrable constraints: triggers check them, so they are not checked while triggers are silenced.
SELECT conname::text AS name, contype::text AS kind,
       (SELECT array_agg(a.attname::text ORDER BY k.ord) FROM unnest(x.conkey) WITH ORDINALITY k(attnum, ord)
          JOIN pg_attribute a ON a.attrelid = x.conrelid AND a.attnum = k.attnum) AS columns
  FROM pg_constraint x
 WHERE x.conrelid = format('%%I.%%I', %(schema)s::text, %(table)s::text)::regclass
   AND x.contype IN ('p', 'u', 'x') AND x.condeferrable
