UPDATE tasks
SET task_status = 'RUNNING', task_context = :context, finished_at = NULL, time_taken = NULL, lost = 0
WHERE task_id = :task_id AND lost = 1
