-- The tables of an installation. Every statement may be run again on what is there already.
CREATE TABLE IF NOT EXISTS @schema@.installation (
    version integer NOT NULL,
    installed_at timestamptz NOT NULL DEFAULT now(),
    upgraded_at timestamptz
);
COMMENT ON TABLE @schema@.installation IS 'One row: the version of trueup tube that is installed in this schema.';

CREATE TABLE IF NOT EXISTS @schema@.tubes (
    tube text PRIMARY KEY CHECK (tube ~ '^[a-z_][a-z0-9_]{0,29}$'),
    partitions integer NOT NULL CHECK (partitions BETWEEN 1 AND 1024),
    predicate text,
    pod_size integer NOT NULL CHECK (pod_size BETWEEN 1 AND 10000),
    created_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE @schema@.tubes IS 'The tubes; the pods of tube x are in the table pods_x.';

CREATE TABLE IF NOT EXISTS @schema@.sources (
    source integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tube text NOT NULL REFERENCES @schema@.tubes ON DELETE CASCADE,
    "table" regclass NOT NULL,
    shard bigint,
    routing text,
    predicate text,
    capture text NOT NULL CHECK (capture IN ('statement', 'row')),
    -- Numbers, not names: a column that is renamed is still the key.
    key_numbers smallint[] NOT NULL,
    -- Partitions that have triggers of their own; what differs from the catalog came or went since.
    covered regclass[] NOT NULL DEFAULT '{}',
    attached_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Kept when it is detached: pods that wait still name it.
    detached_at timestamptz,
    UNIQUE (tube, "table"),
    CHECK ((shard IS NULL) <> (routing IS NULL))
);
COMMENT ON TABLE @schema@.sources IS 'The tables that are attached to tubes; a pod names its table by this number.';

CREATE TABLE IF NOT EXISTS @schema@.backfills (
    source integer NOT NULL REFERENCES @schema@.sources ON DELETE CASCADE,
    -- NULL: all shards of a table with a routing expression.
    shard bigint,
    -- The table, or one partition of it.
    "table" regclass NOT NULL,
    start_seq bigint NOT NULL,
    order_col text NOT NULL,
    started_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at timestamptz,
    keys bigint NOT NULL DEFAULT 0,
    pods bigint NOT NULL DEFAULT 0,
    -- How far it is: the last row in the order of order_col and key, as text.
    last_order text,
    last_key text[]
);
CREATE UNIQUE INDEX IF NOT EXISTS backfills_one_at_a_time
    ON @schema@.backfills (source, coalesce(shard::text, 'all'));
COMMENT ON TABLE @schema@.backfills IS 'The last backfill of each table and shard, finished or not.';

-- One sequence for all tubes: the first step of a backfill takes a number before it knows the tube.
CREATE SEQUENCE IF NOT EXISTS @schema@.pod_seq;
COMMENT ON SEQUENCE @schema@.pod_seq IS 'The numbers of pods. Not the order of commits: a lower one may commit later.';

CREATE TABLE IF NOT EXISTS @schema@.workers (
    tube text NOT NULL REFERENCES @schema@.tubes ON DELETE CASCADE,
    partition integer NOT NULL,
    -- One more for each that takes the lock of the partition: whoever has an older one has lost it.
    generation bigint NOT NULL,
    -- Which process it is, so that one that was killed is told from one that lost its session.
    owner jsonb NOT NULL,
    began_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The lock was given back in order. NULL: it is at work, or was killed.
    ended_at timestamptz,
    pods bigint NOT NULL DEFAULT 0,
    keys bigint NOT NULL DEFAULT 0,
    keys_per_second float8 NOT NULL DEFAULT 0,
    -- Control pods that told of trouble, and are gone.
    troubles bigint NOT NULL DEFAULT 0,
    waiting text,
    PRIMARY KEY (tube, partition)
) WITH (fillfactor = 25);
COMMENT ON TABLE @schema@.workers IS 'Who works on a partition of a tube, or did last, and how far it is.';

CREATE TABLE IF NOT EXISTS @schema@.dead_letters (
    tube text NOT NULL REFERENCES @schema@.tubes ON DELETE CASCADE,
    source integer NOT NULL,
    shard bigint NOT NULL,
    -- As in a pod: the text of the column, or a JSON array of texts.
    key text NOT NULL,
    op "char" NOT NULL,
    error text NOT NULL,
    attempts integer NOT NULL DEFAULT 1,
    first_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- When it is tried again. NULL: it is parked, and nobody tries.
    next_at timestamptz,
    PRIMARY KEY (tube, source, shard, key)
);
COMMENT ON TABLE @schema@.dead_letters IS
    'Keys whose rows could not be read or were refused by the sink. A later touch that succeeds takes them out.';
