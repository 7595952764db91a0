CREATE OR REPLACE FUNCTION @schema@.tube_make_private(kind text, object text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    statement text;
BEGIN
    FOR statement IN
        SELECT DISTINCT format('REVOKE ALL ON %s %s FROM %s', kind, object,
                               CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END)
          FROM (SELECT c.relowner, c.relacl FROM pg_class c WHERE kind IN ('TABLE', 'SEQUENCE') AND c.oid = to_regclass(object)
                UNION ALL
                SELECT p.proowner, coalesce(p.proacl, acldefault('f', p.proowner))
                  FROM pg_proc p WHERE kind = 'FUNCTION' AND p.oid = to_regprocedure(object)) o(owner, acl),
               LATERAL aclexplode(o.acl) a
         WHERE a.grantee <> o.owner LOOP
        EXECUTE statement;
    END LOOP;
END
$$;
COMMENT ON FUNCTION @schema@.tube_make_private(text, text) IS
    'Takes the privileges on a new table, sequence or function away from all roles but its owner, those of ALTER DEFAULT PRIVILEGES too.';
