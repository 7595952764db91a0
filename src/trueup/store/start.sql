INSERT INTO tasks (
    task_id, task_type, task_status, cluster_name, task_context, schema, table_name, repset_name,
    started_at, heartbeat_at, host, boot_id, pid_space, pid, pid_started
)
VALUES (
    :task_id, :task_type, 'RUNNING', :cluster_name, :task_context, :schema, :table_name, :repset_name,
    :started_at, :started_at, :host, :boot_id, :pid_space, :pid, :pid_started
)
