CREATE OR REPLACE FUNCTION @schema@.tube_clones_allow(source integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    statement text;
BEGIN
    -- Without USAGE on the schema they cannot name the functions: only the server creates triggers with them. The functions
    -- refuse other tables as well.
    FOR statement IN
        SELECT DISTINCT format('GRANT EXECUTE ON FUNCTION %s TO %I', f.oid::regprocedure, o.rolname)
          FROM @schema@.sources s
         CROSS JOIN LATERAL @schema@.tube_relations(s."table") r(relation)
          JOIN pg_class c ON c.oid = r.relation AND c.relkind = 'p'
          JOIN pg_roles o ON o.oid = c.relowner
          JOIN pg_proc f ON f.oid IN (to_regprocedure(format('@schema@.%I()', 'touch_' || s.source || '_row')),
                                      to_regprocedure('@schema@.tube_moving()'))
         WHERE s.source = tube_clones_allow.source AND NOT has_function_privilege(o.oid, f.oid, 'EXECUTE')
           AND pg_has_role(f.proowner, 'USAGE') LOOP
        EXECUTE statement;
    END LOOP;
END
$$;
COMMENT ON FUNCTION @schema@.tube_clones_allow(integer) IS
    'Lets the owners of a partitioned table create partitions of it, if another role has attached it: the server then creates '
    'its row triggers with their rights.';
