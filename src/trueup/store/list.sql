SELECT *
FROM tasks
WHERE (:task_type IS NULL OR task_type = :task_type) AND (:status IS NULL OR task_status = :status)
ORDER BY started_at DESC, seq DESC
LIMIT :limit
