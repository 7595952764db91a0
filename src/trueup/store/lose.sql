-- The conditions skip a task that was finished or sent a heartbeat in the meantime.
UPDATE tasks
SET task_status = 'FAILED', task_context = :context,
    finished_at = heartbeat_at, time_taken = :time_taken, lost = 1
WHERE task_id = :task_id AND task_status = 'RUNNING' AND heartbeat_at = :heartbeat_at
