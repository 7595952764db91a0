-- name: types
-- Which of these types are known here.
SELECT to_regtype(type) IS NOT NULL FROM unnest(%(types)s::text[]) WITH ORDINALITY x(type, at) ORDER BY at

-- name: is_attached
-- Whether a tube captures the table: the functions of its triggers are in a schema of tubes.
SELECT EXISTS (SELECT FROM pg_trigger g JOIN pg_proc p ON p.oid = g.tgfoid
                 JOIN pg_proc f ON f.pronamespace = p.pronamespace AND f.proname = 'tube_ensure_exists'
                WHERE g.tgrelid = to_regclass(%(table)s))

-- name: create
CREATE TABLE {target} (
    {columns}, trueup_shard bigint NOT NULL, trueup_seq bigint, trueup_at timestamptz, PRIMARY KEY ({key})
)

-- name: add_marks
ALTER TABLE {target} ADD COLUMN IF NOT EXISTS trueup_shard bigint, ADD COLUMN IF NOT EXISTS trueup_seq bigint,
    ADD COLUMN IF NOT EXISTS trueup_at timestamptz

-- name: older
SELECT trueup_shard, {texts}
  FROM {target} t
 WHERE (coalesce(trueup_seq < %(seq)s, true) OR coalesce(trueup_at < %(at)s, true)) AND {where}
 ORDER BY {key}
 FETCH FIRST %(most)s ROWS WITH TIES
