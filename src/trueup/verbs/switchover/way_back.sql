-- name: oids
SELECT coalesce(to_regclass(format('%%I.%%I', t.schema, t.name))::oid::bigint, 0)
  FROM unnest(%(schemas)s::text[], %(names)s::text[]) WITH ORDINALITY t (schema, name, place) ORDER BY t.place

-- name: not_writable
SELECT current_user::text, t.schema, t.name
  FROM unnest(%(schemas)s::text[], %(names)s::text[]) t (schema, name),
       LATERAL (SELECT to_regclass(format('%%I.%%I', t.schema, t.name))) r (oid)
 WHERE NOT (has_table_privilege(r.oid, 'INSERT') AND has_table_privilege(r.oid, 'UPDATE')
            AND has_table_privilege(r.oid, 'DELETE'))
