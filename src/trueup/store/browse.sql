-- Version 4: for the web page and the alerts.

-- The number of tasks per type and status without reading the tasks.

CREATE INDEX tasks_counts ON tasks (task_type, task_status);

-- What an alert was last sent about, such as the verdict.
ALTER TABLE alerts ADD COLUMN state TEXT NOT NULL DEFAULT '';
