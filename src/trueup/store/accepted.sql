-- Version 5: differences that are known and wanted. They outlive the tasks and the reports that listed them.

CREATE TABLE acceptances (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT NOT NULL UNIQUE,
    -- As it is written in commands: schema and table, quoted where needed.
    table_name  TEXT NOT NULL,
    -- The names of the compared nodes, separated by commas.
    nodes       TEXT NOT NULL,
    -- JSON: which tables were compared, and how. The acceptance applies only to a run with the same values.
    scope       TEXT NOT NULL,
    reason      TEXT NOT NULL,
    accepted_by TEXT NOT NULL,
    accepted_at TEXT NOT NULL,
    -- When it expires; NULL: never.
    until       TEXT,
    task_id     TEXT NOT NULL,
    report      TEXT NOT NULL,
    revoked_at  TEXT,
    revoked_by  TEXT
);

CREATE INDEX acceptances_table ON acceptances (table_name);

CREATE TABLE accepted_differences (
    acceptance  INTEGER NOT NULL REFERENCES acceptances (seq),
    -- SHA-256 of the nodes, the key, and both rows.
    fingerprint BLOB NOT NULL,
    pair        TEXT NOT NULL,
    -- JSON: the values of the key.
    key         TEXT NOT NULL,
    kind        TEXT NOT NULL,
    PRIMARY KEY (acceptance, fingerprint)
) WITHOUT ROWID;
