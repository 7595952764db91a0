-- Version 2: the request of another process to a running task ('pause', 'stop', or '' to continue).

ALTER TABLE tasks ADD COLUMN wanted TEXT NOT NULL DEFAULT '';
