-- name: make
CREATE TABLE IF NOT EXISTS trueup.certificate (
    validation text NOT NULL,
    -- The name of the table on the source, as in trueup.validation_table.
    source text NOT NULL,
    how text NOT NULL,
    -- The tables of both nodes: node, name, OID, columns with types, system identifier, timeline and position.
    source_table jsonb NOT NULL,
    target_table jsonb NOT NULL,
    key text[] NOT NULL,
    -- How rows were hashed.
    compared jsonb NOT NULL,
    proven_at timestamptz NOT NULL,
    completed_at timestamptz NOT NULL,
    void_reason text,
    void_at timestamptz,
    PRIMARY KEY (validation, source),
    FOREIGN KEY (validation, source) REFERENCES trueup.validation_table ON DELETE CASCADE
);
CREATE TABLE IF NOT EXISTS trueup.certificate_block (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    validation text NOT NULL,
    source text NOT NULL,
    -- The key range [start, end); NULL: open.
    start_key text[],
    end_key text[],
    rows bigint NOT NULL,
    -- The sum of the 64-bit row hashes: 128 bits. Their seed was drawn for it, and is never used again; 0: several seeds.
    hash_sum numeric NOT NULL,
    seed bigint NOT NULL,
    hashed_at timestamptz,
    source_lsn bigint,
    target_lsn bigint,
    is_touched boolean NOT NULL,
    FOREIGN KEY (validation, source) REFERENCES trueup.validation_table ON DELETE CASCADE
);
-- The last watch (see verbs/validate/proving/record.py) in which a change has touched the block, or it was stored.
ALTER TABLE trueup.certificate_block ADD COLUMN IF NOT EXISTS touched_in bigint NOT NULL DEFAULT 0;
-- Since which proof the certificate has been valid, also if it was replaced by newer ones.
ALTER TABLE trueup.certificate ADD COLUMN IF NOT EXISTS valid_since timestamptz;
CREATE INDEX IF NOT EXISTS certificate_block_oldest
    ON trueup.certificate_block (validation, source, hashed_at NULLS FIRST)

-- name: is_made
SELECT to_regclass('trueup.certificate_block_oldest') IS NOT NULL
   AND EXISTS (SELECT FROM pg_attribute
                WHERE attrelid = to_regclass('trueup.certificate_block') AND attname = 'seed')
   AND EXISTS (SELECT FROM pg_attribute
                WHERE attrelid = to_regclass('trueup.certificate') AND attname = 'valid_since') AS is_made

-- name: drop
DROP TABLE IF EXISTS trueup.certificate, trueup.certificate_block

-- name: certificates
SELECT validation, source, how, source_table, target_table, key, compared, proven_at, completed_at, void_reason, void_at,
       valid_since
  FROM trueup.certificate WHERE validation = %(validation)s ORDER BY source

-- name: put
INSERT INTO trueup.certificate (validation, source, how, source_table, target_table, key, compared, proven_at,
       completed_at, valid_since)
VALUES (%(validation)s, %(source)s, %(how)s, %(source_table)s, %(target_table)s, %(key)s, %(compared)s, %(proven_at)s,
       %(completed_at)s, %(proven_at)s)
ON CONFLICT (validation, source) DO UPDATE SET
    how = excluded.how, source_table = excluded.source_table, target_table = excluded.target_table, key = excluded.key,
    compared = excluded.compared, proven_at = excluded.proven_at, completed_at = excluded.completed_at,
    void_reason = NULL, void_at = NULL,
    valid_since = coalesce(
        CASE WHEN certificate.void_at IS NULL THEN certificate.valid_since END, excluded.valid_since)
 -- What was found before the event that voided the certificate does not lift it, and an older proof is no news.
 WHERE coalesce(certificate.void_at < excluded.proven_at, certificate.proven_at <= excluded.proven_at)
RETURNING source

-- name: void
-- The first reason stays, the time is that of the last one: all blocks are hashed again after it.
UPDATE trueup.certificate SET void_reason = coalesce(void_reason, %(reason)s), void_at = clock_timestamp()
 WHERE validation = %(validation)s AND (%(sources)s::text[] IS NULL OR source = ANY (%(sources)s::text[]))

-- name: blocks
SELECT id, start_key, end_key, rows, hash_sum, seed, hashed_at, source_lsn, target_lsn, is_touched, touched_in
  FROM trueup.certificate_block WHERE validation = %(validation)s AND source = %(source)s

-- name: oldest
-- The block of a table that was hashed longest ago, or never.
SELECT id, start_key, end_key, rows, hash_sum, seed, hashed_at, source_lsn, target_lsn, is_touched, touched_in
  FROM trueup.certificate_block WHERE validation = %(validation)s AND source = %(source)s
 ORDER BY hashed_at NULLS FIRST, id LIMIT 1

-- name: ages
-- Per table: its blocks, those that were never hashed, and when the oldest one was.
SELECT source, count(*) AS blocks, count(*) FILTER (WHERE hashed_at IS NULL) AS unhashed, min(hashed_at) AS oldest_at,
       count(*) FILTER (WHERE is_touched) AS touched
  FROM trueup.certificate_block WHERE validation = %(validation)s GROUP BY source

-- name: add_blocks
INSERT INTO trueup.certificate_block (validation, source, start_key, end_key, rows, hash_sum, seed, hashed_at,
       source_lsn, target_lsn, is_touched, touched_in)
SELECT %(validation)s, %(source)s, e.start_key, e.end_key, e.rows, e.hash_sum, e.seed, e.hashed_at, e.source_lsn,
       e.target_lsn, e.is_touched,
       -- Whether changes have touched its keys in this watch is not known.
       (SELECT watch FROM trueup.validation WHERE name = %(validation)s)
  FROM jsonb_to_recordset(%(lines)s) e(start_key text[], end_key text[], rows bigint, hash_sum numeric,
       seed bigint, hashed_at timestamptz, source_lsn bigint, target_lsn bigint, is_touched boolean)
RETURNING id

-- name: drop_blocks
DELETE FROM trueup.certificate_block WHERE validation = %(validation)s AND source = %(source)s
   AND (%(ids)s::bigint[] IS NULL OR id = ANY (%(ids)s::bigint[]))

-- name: put_block
UPDATE trueup.certificate_block SET rows = %(rows)s, hash_sum = %(hash_sum)s, seed = %(seed)s, hashed_at = %(hashed_at)s,
       source_lsn = %(source_lsn)s, target_lsn = %(target_lsn)s, is_touched = %(is_touched)s
 -- A run of diff or check may have compared the block later.
 WHERE id = %(id)s AND (hashed_at IS NULL OR hashed_at <= %(hashed_at)s)

-- name: touch
UPDATE trueup.certificate_block SET is_touched = true, touched_in = %(watch)s
 WHERE id = ANY (%(ids)s) AND (NOT is_touched OR touched_in < %(watch)s)
