-- Version 6: alerts are stored per target, so that one that was down gets them later, and are claimed while they are sent.

DROP TABLE alerts;

CREATE TABLE alerts (
    target      TEXT NOT NULL,
    alert       TEXT NOT NULL,
    text        TEXT NOT NULL,
    since       TEXT NOT NULL,
    -- When it was last sent; '': it was never sent.
    notified_at TEXT NOT NULL,
    -- What it was last sent about, such as the verdict.
    state       TEXT NOT NULL,
    -- When a process began to send it; '': none does.
    claimed_at  TEXT NOT NULL,
    PRIMARY KEY (target, alert)
) WITHOUT ROWID;
