-- Before version 6, update triggers of some tables had no old rows, and row triggers `key` recorded the former keys. The
-- functions of this version need the old rows.
SELECT @schema@.tube_ddl(array_agg(x.statement ORDER BY x.at), array_agg(DISTINCT x.place), '30 s')
  FROM (SELECT g.tgrelid::regclass AS place, v.at, v.statement
          FROM pg_trigger g JOIN pg_proc p ON p.oid = g.tgfoid
          JOIN @schema@.sources s ON p.proname IN ('touch_' || s.source, 'touch_' || s.source || '_row')
         CROSS JOIN LATERAL (VALUES
            (1, g.tgname = '@schema@_' || s.tube || '_update' AND g.tgoldtable IS NULL,
             format('CREATE OR REPLACE TRIGGER %I AFTER UPDATE ON %s REFERENCING NEW TABLE AS new_rows OLD TABLE AS old_rows'
                    ' FOR EACH STATEMENT EXECUTE FUNCTION @schema@.%I()', g.tgname, g.tgrelid::regclass, p.proname)),
            -- The new trigger has the state of the former one.
            (2, g.tgname = '@schema@_' || s.tube || '_update' AND g.tgoldtable IS NULL,
             format('ALTER TABLE ONLY %s %s TRIGGER %I', g.tgrelid::regclass, CASE g.tgenabled
                    WHEN 'A' THEN 'ENABLE ALWAYS' WHEN 'R' THEN 'ENABLE REPLICA' WHEN 'O' THEN 'ENABLE' ELSE 'DISABLE' END,
                    g.tgname)),
            (3, g.tgname = '@schema@_' || s.tube || '_key', format('DROP TRIGGER %I ON %s', g.tgname, g.tgrelid::regclass))
         ) v(at, needed, statement)
         WHERE p.pronamespace = '@schema@'::regnamespace AND v.needed) x
HAVING count(*) > 0;
-- Before version 10, row triggers of partitions with partitions were disabled, and so were those of their new partitions.
SELECT @schema@.tube_ddl(array_agg(format('ALTER TABLE ONLY %s ENABLE ALWAYS TRIGGER %I', x.place, x.name)),
                         array_agg(DISTINCT x.place), '30 s')
  FROM (SELECT g.tgrelid::regclass AS place, g.tgname AS name
          FROM @schema@.sources s
         CROSS JOIN LATERAL @schema@.tube_relations(s."table") r(relation)
          JOIN pg_class c ON c.oid = r.relation
          JOIN pg_trigger g ON g.tgrelid = r.relation AND g.tgname = '@schema@_' || s.tube || '_row'
         WHERE s.detached_at IS NULL AND s.triggers IS NULL AND s.capture = 'statement' AND r.relation <> s."table"
           AND c.relkind = 'p' AND g.tgenabled = 'D' AND pg_has_role(c.relowner, 'USAGE')) x
HAVING count(*) > 0
