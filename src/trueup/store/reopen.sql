UPDATE tasks
SET task_status = 'RUNNING', task_context = :context, finished_at = NULL, time_taken = NULL, lost = 0, wanted = '',
    diff_file_path = '', heartbeat_at = :now,
    host = :host, boot_id = :boot_id, pid_space = :pid_space, pid = :pid, pid_started = :pid_started
WHERE task_id = :task_id
