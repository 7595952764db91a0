-- The conditions make sure that a task which was finished, or heard of, in the meantime is left alone.
UPDATE tasks
SET task_status = 'FAILED', task_context = :context,
    finished_at = heartbeat_at, time_taken = :time_taken, lost = 1
WHERE task_id = :task_id AND task_status = 'RUNNING' AND heartbeat_at = :heartbeat_at
