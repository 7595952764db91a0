-- The tables of an installation. Every statement can be run again on an existing installation.
CREATE TABLE IF NOT EXISTS @schema@.installation (
    version integer NOT NULL,
    installed_at timestamptz NOT NULL DEFAULT now(),
    upgraded_at timestamptz
);
COMMENT ON TABLE @schema@.installation IS 'One row: the version of trueup tube installed in this schema.';

CREATE TABLE IF NOT EXISTS @schema@.tubes (
    tube text PRIMARY KEY CHECK (tube ~ '^[a-z_][a-z0-9_]{0,29}$'),
    partitions integer NOT NULL CHECK (partitions BETWEEN 1 AND 1024),
    predicate text,
    pod_size integer NOT NULL CHECK (pod_size BETWEEN 1 AND 10000),
    created_at timestamptz NOT NULL DEFAULT now(),
    -- Of the change log of a sync: the sync, whose own writes are not recorded, and the database at its other end.
    sync text,
    peer text,
    -- The maximum size of the pods in bytes; NULL: no limit. See tube_full.
    max_bytes bigint,
    -- Functions that the predicate may call although they could write.
    allow_functions text[] NOT NULL DEFAULT '{}',
    -- Whether changes that a subscription applies need not be captured: they fire no statement triggers.
    skips_applied boolean NOT NULL DEFAULT false
);
COMMENT ON TABLE @schema@.tubes IS 'Tubes. The pods of tube x are in the table pods_x.';

CREATE TABLE IF NOT EXISTS @schema@.sources (
    source integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tube text NOT NULL REFERENCES @schema@.tubes ON DELETE CASCADE,
    "table" regclass NOT NULL,
    shard bigint,
    routing text,
    predicate text,
    capture text NOT NULL CHECK (capture IN ('statement', 'row')),
    -- The key columns by number, so that a renamed column remains the key, and by name, because a restored table may have
    -- other numbers; and the table that the numbers are of: see tube_key_numbers.
    key_numbers smallint[] NOT NULL,
    key_names text[] NOT NULL,
    key_place text NOT NULL,
    -- Of a table without a key: the expression of a number by which rows r are found. Equal rows have equal numbers.
    row_id text,
    -- Partitions with triggers of their own. A difference from the catalog is a new or removed partition.
    covered regclass[] NOT NULL DEFAULT '{}',
    attached_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The name under which sinks have the documents of the table, and the columns of which they have all values.
    name text,
    columns jsonb,
    -- The files of the table and the versions of its columns and partitions in the catalog: see tube_rewritten, tube_reattached.
    storage jsonb,
    -- The versions of the triggers in the catalog: see tube_triggers_changed. NULL: not known yet.
    triggers jsonb,
    -- Whether the table has a parent, and its columns: see tube_parents. `noted_at`: when tube_parents_follow noted one.
    parents jsonb,
    -- Why the copy may lack changes that no touch will bring, and when this was noted; NULL after a later backfill.
    incomplete text,
    incomplete_at timestamptz,
    -- The row is kept when the table is detached: waiting pods still refer to it.
    detached_at timestamptz,
    -- Fails when it is parsed if a column of predicate or routing has another type than when they were checked.
    guard text,
    -- Functions that predicate and routing may call although they could write.
    allow_functions text[] NOT NULL DEFAULT '{}',
    CHECK ((shard IS NULL) <> (routing IS NULL))
);
-- A table that gets another key gets another number: waiting pods with the former key refer to the former row.
CREATE UNIQUE INDEX IF NOT EXISTS sources_attached ON @schema@.sources (tube, "table") WHERE detached_at IS NULL;
COMMENT ON TABLE @schema@.sources IS 'Tables attached to tubes. Pods refer to a table by its source number.';

-- Partitions whose rows may be in the copy before tube_cover knows them, and how they were attached: see tube_passing.
CREATE TABLE IF NOT EXISTS @schema@.passing (
    source integer NOT NULL,
    relation oid NOT NULL,
    attached text NOT NULL
);

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
    -- Position: the last row in the order of order_col and key, as text.
    last_order text,
    last_key text[],
    -- The table at the start: its values are complete at the end.
    columns jsonb,
    storage jsonb,
    incomplete_at timestamptz
);
CREATE UNIQUE INDEX IF NOT EXISTS backfills_one_at_a_time
    ON @schema@.backfills (source, coalesce(shard::text, 'all'));
COMMENT ON TABLE @schema@.backfills IS 'The last backfill of each table and shard, finished or not.';

-- One sequence for all tubes: the first step of a backfill takes a number before the tube is known.
-- It starts again at its end: a write must not fail. Nothing relies on a higher number being newer: see docs/design/tubes.md.
CREATE SEQUENCE IF NOT EXISTS @schema@.pod_seq CYCLE;
COMMENT ON SEQUENCE @schema@.pod_seq IS 'Numbers of pods. They are not in commit order: a lower number may be committed later.';

CREATE TABLE IF NOT EXISTS @schema@.workers (
    tube text NOT NULL REFERENCES @schema@.tubes ON DELETE CASCADE,
    partition integer NOT NULL,
    -- Incremented each time the lock of the partition is taken. A worker with an older generation has lost the lock.
    generation bigint NOT NULL,
    -- The process, to distinguish a killed worker from one that only lost its session.
    owner jsonb NOT NULL,
    began_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- When the lock was released. NULL: the worker is running, or was killed.
    ended_at timestamptz,
    pods bigint NOT NULL DEFAULT 0,
    keys bigint NOT NULL DEFAULT 0,
    keys_per_second float8 NOT NULL DEFAULT 0,
    -- Number of processed control pods that reported a capture problem.
    troubles bigint NOT NULL DEFAULT 0,
    waiting text,
    PRIMARY KEY (tube, partition)
) WITH (fillfactor = 25);
COMMENT ON TABLE @schema@.workers IS 'The current or last worker of each partition, and its progress.';

CREATE TABLE IF NOT EXISTS @schema@.holders (
    tube text NOT NULL REFERENCES @schema@.tubes ON DELETE CASCADE,
    partition integer NOT NULL,
    -- The session, while it exists: a later process may have the same number.
    pid integer NOT NULL,
    -- NULL: the role that the session has set may not see when its own session began.
    since timestamptz,
    PRIMARY KEY (tube, partition)
);
COMMENT ON TABLE @schema@.holders IS
    'The sessions that hold the lock of a partition. Not advisory locks, which every role can take.';

CREATE TABLE IF NOT EXISTS @schema@.dead_letters (
    tube text NOT NULL REFERENCES @schema@.tubes ON DELETE CASCADE,
    source integer NOT NULL,
    shard bigint NOT NULL,
    -- As in pods: the text of the key column, or a JSON array of texts.
    key text NOT NULL,
    op "char" NOT NULL,
    error text NOT NULL,
    attempts integer NOT NULL DEFAULT 1,
    first_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Time of the next attempt. NULL: the key is parked and not retried.
    next_at timestamptz,
    PRIMARY KEY (tube, source, shard, key)
);
COMMENT ON TABLE @schema@.dead_letters IS
    'Keys whose rows could not be read or were refused by the sink. A later successful touch removes them.';

CREATE TABLE IF NOT EXISTS @schema@.readers (
    tube text NOT NULL REFERENCES @schema@.tubes ON DELETE CASCADE,
    reader text NOT NULL,
    round bigint NOT NULL,
    -- The tokens of the round that began last, and of the one whose pods were deleted last.
    begun text NOT NULL,
    done text NOT NULL DEFAULT '',
    PRIMARY KEY (tube, reader)
) WITH (fillfactor = 25);
COMMENT ON TABLE @schema@.readers IS
    'Syncs and validations that read a tube, with the tokens of their last rounds. They detect a restored database.';
