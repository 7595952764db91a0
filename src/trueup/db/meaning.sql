-- name: foreign_event_triggers
-- Whether an event trigger fires whose function another role can replace.
SELECT EXISTS (SELECT FROM pg_event_trigger e JOIN pg_proc p ON p.oid = e.evtfoid JOIN pg_roles r ON r.oid = p.proowner
                WHERE NOT r.rolsuper AND e.evtenabled IN ('A', CASE current_setting('session_replication_role') WHEN 'replica' THEN 'R' ELSE 'O' END))

-- name: are_safe
-- Whether literals of all these types can be read without code of roles that are not superusers: enums, and base types.
SELECT coalesce(bool_and(coalesce(t.typtype = 'e' OR (t.typtype = 'b' AND t.typelem = 0 AND r.rolsuper), false)), true)
  FROM unnest(%(types)s::text[]) n(name) LEFT JOIN pg_type t ON t.oid = to_regtype(n.name) LEFT JOIN pg_roles r ON r.oid = t.typowner

-- name: rule
SELECT pg_get_ruledef(r.oid) FROM pg_rewrite r WHERE r.ev_class = {table}::regclass AND quote_ident(r.rulename) = {name}

-- name: trigger
SELECT pg_get_triggerdef(g.oid) FROM pg_trigger g WHERE g.tgrelid = {table}::regclass AND quote_ident(g.tgname) = {name}
