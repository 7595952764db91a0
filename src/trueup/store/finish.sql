UPDATE tasks
SET task_status = :status, task_context = :context, diff_file_path = :diff_file_path,
    finished_at = :finished_at, time_taken = :time_taken, lost = 0
WHERE task_id = :task_id
