-- After an upgrade from a version that did not store the versions of triggers and partitions.
-- A role that may not read the number of the server has stored a place without it.
UPDATE @schema@.sources s SET storage = jsonb_set(s.storage, '{place}', to_jsonb(@schema@.tube_key_place(s."table")))
 WHERE s.detached_at IS NULL AND s.triggers IS NULL AND EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = s."table")
   AND s.storage ->> 'place' = regexp_replace(@schema@.tube_key_place(s."table"), '^[^/]*', '');
-- What happened to a copy of a database is not known.
SELECT @schema@.tube_incomplete(s.source, 'the database was restored or copied')
  FROM @schema@.sources s JOIN pg_catalog.pg_class c ON c.oid = s."table"
 WHERE s.detached_at IS NULL AND s.triggers IS NULL AND s.storage ->> 'place' <> @schema@.tube_key_place(s."table");
-- What is disabled now may be enabled before the first check.
SELECT @schema@.tube_incomplete(s.source, 'its triggers were missing, disabled or replaced')
  FROM @schema@.sources s JOIN pg_catalog.pg_class c ON c.oid = s."table"
 WHERE s.detached_at IS NULL AND s.triggers IS NULL AND cardinality(@schema@.tube_trigger_ddl(s.source, true)) > 0;
-- Statements on a new partition of a partition were not captured.
SELECT @schema@.tube_incomplete(s.source, 'its triggers were missing, disabled or replaced')
  FROM @schema@.sources s JOIN pg_catalog.pg_class c ON c.oid = s."table"
 WHERE s.detached_at IS NULL AND s.triggers IS NULL AND EXISTS (
       SELECT FROM @schema@.tube_relations(s."table") r(relation) JOIN pg_catalog.pg_trigger g ON g.tgrelid = r.relation
        WHERE r.relation <> ALL (s.covered) AND g.tgname = '@schema@_' || s.tube || '_row' AND g.tgenabled = 'D');
-- A column with another version than at the last check may show a parent: its definition from then is not known.
UPDATE @schema@.sources s SET parents = @schema@.tube_parents(s."table") || jsonb_build_object('columns', s.storage -> 'columns')
 WHERE s.detached_at IS NULL AND s.parents IS NULL AND s.storage ? 'columns'
   AND EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = s."table");
-- Rows of partitions without statement triggers may be in the copy already.
SELECT @schema@.tube_passing_store(s.source), @schema@.tube_triggers_follow(s.source)
  FROM @schema@.sources s JOIN pg_catalog.pg_class c ON c.oid = s."table"
 WHERE s.detached_at IS NULL AND s.triggers IS NULL;
UPDATE @schema@.sources s SET storage = jsonb_set(s.storage, '{attached}', @schema@.tube_storage(s."table") -> 'attached')
 WHERE s.detached_at IS NULL AND NOT s.storage ? 'attached' AND EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = s."table");
