-- name: sources
-- Attached tables for enrichment, including detached tables with waiting pods.
SELECT s.source, s."table"::text AS name, s.name AS name_in_sink, n.nspname::text AS schema, c.relname::text AS relation, c.relkind::text AS kind,
       s.routing IS NOT NULL AS is_routed, {schema}.tube_shard_sql(s.source) AS shard_sql,
       {schema}.tube_where(s.source) AS condition, s.detached_at IS NOT NULL AS is_detached,
       {schema}.tube_key_names(s."table", {schema}.tube_key_numbers(s)) AS key, cardinality(s.key_numbers) AS key_size,
       EXISTS (SELECT FROM {schema}.sources n WHERE n.tube = s.tube AND n."table" = s."table" AND n.source > s.source)
           AS is_superseded
  FROM {schema}.sources s
  LEFT JOIN pg_class c ON c.oid = s."table"
  LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE s.tube = %(tube)s AND s.source = ANY (%(sources)s)

-- name: source_names
SELECT s."table"::text, s.detached_at IS NOT NULL FROM {schema}.sources s WHERE s.source = %(source)s

-- name: prints
-- One short text per source that changes whenever the result of `sources` or a column changes. In the order in which they
-- are announced and proven.
SELECT s.source, md5(concat_ws(' ', t.predicate, s.predicate, s.routing, s.guard, s.shard, s.key_numbers, s.key_place,
                               s.detached_at, s."table"::text, s.name, c.relkind, a.columns, newer.source))
  FROM {schema}.sources s JOIN {schema}.tubes t USING (tube)
  LEFT JOIN pg_class c ON c.oid = s."table"
 CROSS JOIN LATERAL (SELECT string_agg(concat_ws(' ', x.attnum, x.attname, x.atttypid, x.atttypmod, x.attnotnull), ','
                                       ORDER BY x.attnum) AS columns
                       FROM pg_attribute x WHERE x.attrelid = s."table" AND x.attnum > 0 AND NOT x.attisdropped) a
 CROSS JOIN LATERAL (SELECT max(n.source) AS source FROM {schema}.sources n
                      WHERE n.tube = s.tube AND n."table" = s."table") newer
 WHERE s.tube = %(tube)s AND s.source = ANY (%(sources)s)
 ORDER BY s.source

-- name: expressions
-- The tables whose rows are selected or routed by an expression, and the role whose rights it gets in the trigger.
SELECT s.source, s."table"::text AS "table", t.predicate AS tube_predicate, s.predicate, s.routing,
       t.allow_functions || s.allow_functions AS allow_functions,
       coalesce((SELECT pg_get_userbyid(p.proowner) FROM pg_proc p
                  WHERE p.oid = to_regprocedure({quoted} || '.touch_' || s.source || '()')), current_user)::text AS owner
  FROM {schema}.sources s JOIN {schema}.tubes t USING (tube) JOIN pg_class c ON c.oid = s."table"
 WHERE coalesce(t.predicate, s.predicate, s.routing) IS NOT NULL AND s.tube = coalesce(%(tube)s, s.tube)
   AND s.source = coalesce(%(source)s, s.source)

-- name: attached
SELECT source FROM {schema}.sources WHERE tube = %(tube)s AND detached_at IS NULL ORDER BY source

-- name: attached_table
SELECT s.tube, s.source, s."table"::text AS "table", s.shard, s.routing, s.predicate, s.capture, s.attached_at,
       {schema}.tube_key_names(s."table", {schema}.tube_key_numbers(s)) AS key,
       {schema}.tube_stale_columns(s.source) AS stale_columns
  FROM {schema}.sources s WHERE s.source = %(source)s

-- name: last_worker
SELECT owner, ended_at IS NOT NULL, extract(epoch FROM clock_timestamp() - seen_at)::float8, seen_at
  FROM {schema}.workers WHERE tube = %(tube)s AND partition = %(partition)s

-- name: engine
UPDATE {schema}.workers SET owner = owner || jsonb_build_object('engine', %(engine)s::jsonb)
 WHERE tube = %(tube)s AND partition = %(partition)s AND generation = %(generation)s

-- name: engines
SELECT tube, partition, owner -> 'engine' FROM {schema}.workers WHERE ended_at IS NULL

-- name: generation
SELECT generation FROM {schema}.workers WHERE tube = %(tube)s AND partition = %(partition)s

-- name: touch_again
-- Inserts keys of one source as backfill pods of the tube's pod size.
INSERT INTO {pods} (shard, source, op, ids, keys)
SELECT x.shard, %(source)s, 'B', coalesce(array_agg(x.id ORDER BY x.n) FILTER (WHERE x.id IS NOT NULL), '{{}}'),
       array_agg(x.key ORDER BY x.n) FILTER (WHERE x.key IS NOT NULL)
  FROM (SELECT u.*, (row_number() OVER (PARTITION BY u.shard ORDER BY u.n) - 1) / t.pod_size AS pod
          FROM unnest(%(shards)s::bigint[], %(ids)s::bigint[], %(keys)s::text[]) WITH ORDINALITY u(shard, id, key, n),
               {schema}.tubes t WHERE t.tube = %(tube)s) x
 GROUP BY x.shard, x.pod ORDER BY min(x.n)

-- name: running_backfills
-- Backfills of all processes; one without progress for a minute is not running.
SELECT count(*) FROM {schema}.backfills b JOIN {schema}.sources s USING (source)
 WHERE s.tube = %(tube)s AND b.finished_at IS NULL AND b.updated_at > clock_timestamp() - interval '1 min'

-- name: letter_refused
-- A key that cannot be read is parked at once.
INSERT INTO {schema}.dead_letters AS d (tube, source, shard, key, op, error, next_at)
SELECT %(tube)s, u.source, u.shard, u.key, u.op::"char", u.error,
       CASE WHEN NOT u.is_unreadable THEN clock_timestamp() + %(pause)s * interval '1 s' END
  FROM (SELECT DISTINCT ON (source, shard, key) *
          FROM unnest(%(sources)s::int[], %(shards)s::bigint[], %(keys)s::text[], %(ops)s::text[], %(errors)s::text[],
                      %(unreadable)s::boolean[]) x(source, shard, key, op, error, is_unreadable)) u
ON CONFLICT ON CONSTRAINT dead_letters_pkey DO UPDATE
   SET op = EXCLUDED.op, error = EXCLUDED.error, attempts = d.attempts + 1, last_at = clock_timestamp(),
       next_at = CASE WHEN d.attempts + 1 < %(attempts)s AND EXCLUDED.next_at IS NOT NULL
                      THEN clock_timestamp() + %(pause)s * 2 ^ least(d.attempts, 20) * interval '1 s' END
RETURNING d.source, d.shard, d.key, d.next_at IS NULL

-- name: letter_cleared
DELETE FROM {schema}.dead_letters d
 USING unnest(%(sources)s::int[], %(shards)s::bigint[], %(keys)s::text[]) u(source, shard, key)
 WHERE d.tube = %(tube)s AND d.source = u.source AND d.shard = u.shard AND d.key = u.key

-- name: letters_due
SELECT d.source, d.shard, d.key, d.op::text FROM {schema}.dead_letters d
 WHERE d.tube = %(tube)s AND d.next_at <= clock_timestamp() AND abs(d.shard %% %(partitions)s) = ANY (%(mine)s)
   AND NOT d.source = ANY (%(aside)s)
 ORDER BY d.next_at LIMIT %(most)s

-- name: letters_open
SELECT count(*), count(d.next_at) FILTER (WHERE NOT d.source = ANY (%(aside)s)) FROM {schema}.dead_letters d
 WHERE d.tube = %(tube)s AND abs(d.shard %% %(partitions)s) = ANY (%(mine)s)

-- name: letters
SELECT d.tube, s."table"::text AS "table", d.source, d.shard, d.key, d.op::text AS op, d.error, d.attempts, d.first_at, d.last_at,
       d.next_at
  FROM {schema}.dead_letters d LEFT JOIN {schema}.sources s USING (source)
 WHERE d.tube = %(tube)s AND (%(keys)s::text[] IS NULL OR d.key = ANY (%(keys)s))
 ORDER BY d.last_at DESC, d.source, d.shard, d.key LIMIT %(most)s

-- name: letters_retry
UPDATE {schema}.dead_letters d SET attempts = 0, next_at = clock_timestamp()
 WHERE d.tube = %(tube)s AND (%(keys)s::text[] IS NULL OR d.key = ANY (%(keys)s))

-- name: letters_drop
DELETE FROM {schema}.dead_letters d
 WHERE d.tube = %(tube)s AND (%(keys)s::text[] IS NULL OR d.key = ANY (%(keys)s))

-- name: backfills
SELECT s.tube, b.source, b."table"::text, b.shard, b.start_seq, b.order_col, b.started_at, b.updated_at, b.finished_at,
       b.keys, b.pods, (SELECT coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint FROM {schema}.tube_relations(b."table") r(place)
                          JOIN pg_class c ON c.oid = r.place::oid WHERE c.relkind = 'r') AS rows
  FROM {schema}.backfills b JOIN {schema}.sources s USING (source) ORDER BY s.tube, 3, b.shard

-- name: waiting_backfill
SELECT p.source, sum(cardinality(p.ids) + coalesce(cardinality(p.keys), 0))::bigint FROM {pods} p
 WHERE p.op = 'B' GROUP BY p.source
