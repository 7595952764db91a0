-- Version 1 of the task store. Each later version is a separate file, listed in STEPS of file.py.

CREATE TABLE tasks (
    seq            INTEGER PRIMARY KEY AUTOINCREMENT,
    task_id        TEXT NOT NULL UNIQUE,
    task_type      TEXT NOT NULL,
    task_status    TEXT NOT NULL CHECK (task_status IN ('RUNNING', 'COMPLETED', 'FAILED', 'INTERRUPTED')),
    cluster_name   TEXT NOT NULL,
    task_context   TEXT NOT NULL,
    schema         TEXT NOT NULL,
    table_name     TEXT NOT NULL,
    repset_name    TEXT NOT NULL,
    diff_file_path TEXT NOT NULL DEFAULT '',
    -- UTC, for example 2025-07-22T12:03:51.042Z: fixed width, so that the text sorts by time.
    started_at     TEXT NOT NULL,
    finished_at    TEXT,
    time_taken     REAL,
    progress       TEXT NOT NULL DEFAULT '{}',
    -- The process that runs the task, and its last heartbeat.
    heartbeat_at   TEXT NOT NULL,
    host           TEXT NOT NULL,
    boot_id        TEXT NOT NULL,
    pid_space      TEXT NOT NULL,
    pid            INTEGER NOT NULL,
    pid_started    TEXT NOT NULL,
    -- 1: marked as FAILED by a scrub. Its owner, if alive after all, may continue it.
    lost           INTEGER NOT NULL DEFAULT 0
);

CREATE INDEX tasks_started ON tasks (started_at);

-- Every opening of the store selects the running tasks, which are few.
CREATE INDEX tasks_running ON tasks (task_status) WHERE task_status = 'RUNNING';

-- The times have the format of SQLite's datetime(), so that both compare as text. The 'T' of ISO 8601 sorts after
-- the blank: "started_at >= datetime('now', '-7 day')" would be true for the whole boundary day.
CREATE VIEW ace_tasks AS
SELECT
    task_id,
    task_type,
    task_status,
    cluster_name,
    task_context,
    schema,
    table_name,
    repset_name,
    diff_file_path,
    replace(rtrim(started_at, 'Z'), 'T', ' ')  AS started_at,
    replace(rtrim(finished_at, 'Z'), 'T', ' ') AS finished_at,
    time_taken
FROM tasks;
