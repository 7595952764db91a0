-- Version 2: what somebody outside wants of a running task ('pause' or 'stop'; '': that it goes on).

ALTER TABLE tasks ADD COLUMN wanted TEXT NOT NULL DEFAULT '';
