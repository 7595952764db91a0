-- Version 3: the history of tables. It outlives the tasks, which may be pruned.

-- One row per table and run. `differences` of a check is the number of differing blocks; NULL: not known.
CREATE TABLE table_runs (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    task_id      TEXT NOT NULL,
    cluster_name TEXT NOT NULL,
    -- The names of the compared nodes, separated by commas.
    nodes        TEXT NOT NULL,
    -- As it is written in commands: schema and table, quoted where needed.
    table_name   TEXT NOT NULL,
    mode         TEXT NOT NULL,
    -- 1: all rows and columns were compared. Only then does MATCH prove the table.
    is_whole     INTEGER NOT NULL,
    verdict      TEXT NOT NULL,
    differences  INTEGER,
    -- JSON: pair of nodes -> kind -> count; node -> position of its snapshot.
    kinds        TEXT NOT NULL DEFAULT '{}',
    positions    TEXT NOT NULL DEFAULT '{}',
    rows         INTEGER NOT NULL DEFAULT 0,
    seconds      REAL NOT NULL DEFAULT 0,
    started_at   TEXT NOT NULL,
    finished_at  TEXT NOT NULL,
    UNIQUE (task_id, table_name)
);

CREATE INDEX table_runs_table ON table_runs (table_name, cluster_name, nodes, seq);
CREATE INDEX table_runs_finished ON table_runs (finished_at);

-- One row per table and set of nodes: sums that never decrease, and the last proof.
CREATE TABLE table_states (
    table_name   TEXT NOT NULL,
    cluster_name TEXT NOT NULL,
    nodes        TEXT NOT NULL,
    -- The row of table_runs that decides the verdict: the last one over the whole table, or a later DIFFER of a part.
    decided_by   INTEGER NOT NULL,
    -- When the last run that proved the table began: rows written later are not covered.
    matched_at   TEXT,
    runs         INTEGER NOT NULL DEFAULT 0,
    rows_total   INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (table_name, cluster_name, nodes)
) WITHOUT ROWID;

-- Actions that were requested through the web page: who, when, what.
CREATE TABLE actions (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    at      TEXT NOT NULL,
    who     TEXT NOT NULL,
    action  TEXT NOT NULL,
    target  TEXT NOT NULL,
    outcome TEXT NOT NULL
);

-- Alerts that were sent and are not resolved.
CREATE TABLE alerts (
    alert       TEXT PRIMARY KEY,
    text        TEXT NOT NULL,
    since       TEXT NOT NULL,
    notified_at TEXT NOT NULL
) WITHOUT ROWID;

-- Lists by type and status, and pages of a list.
CREATE INDEX tasks_type ON tasks (task_type, started_at);
CREATE INDEX tasks_status ON tasks (task_status, started_at);
