SELECT *
FROM tasks
WHERE (:task_type IS NULL OR task_type = :task_type) AND (:status IS NULL OR task_status = :status)
  AND (:table_name IS NULL OR table_name = :table_name)
ORDER BY started_at DESC, seq DESC
LIMIT :limit
