-- name: identity
-- The replica identity of a table, the columns of its index, and the persistence of the table.
SELECT c.relreplident::text,
       (SELECT array_agg(a.attname::text ORDER BY k.ord)
          FROM pg_index i
          CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, ord)
          JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
         WHERE i.indrelid = c.oid AND i.indisreplident AND k.ord <= i.indnkeyatts),
       c.relpersistence::text
  FROM pg_class c
 WHERE c.oid = %(oid)s

-- name: own_text
-- Types whose cast to text is another function than their output. Types outside pg_catalog are not cast.
SELECT n.nspname::text, t.typname::text
  FROM pg_cast k JOIN pg_type t ON t.oid = k.castsource JOIN pg_namespace n ON n.oid = t.typnamespace
 WHERE k.casttarget = 'text'::regtype AND k.castfunc <> 0 AND n.nspname = 'pg_catalog'
