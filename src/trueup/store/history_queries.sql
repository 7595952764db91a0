-- name: run
INSERT INTO table_runs (
    task_id, cluster_name, nodes, table_name, mode, is_whole, verdict, differences, kinds, positions, rows, seconds,
    started_at, finished_at
)
VALUES (
    :task_id, :cluster_name, :nodes, :table_name, :mode, :is_whole, :verdict, :differences, :kinds, :positions, :rows,
    :seconds, :started_at, :finished_at
)

-- name: state
INSERT INTO table_states (table_name, cluster_name, nodes, decided_by, matched_at, runs, rows_total)
VALUES (:table_name, :cluster_name, :nodes, :seq, :matched_at, 1, :rows)
ON CONFLICT (table_name, cluster_name, nodes) DO UPDATE SET
    decided_by = CASE WHEN :decides THEN excluded.decided_by ELSE decided_by END,
    matched_at = max(coalesce(matched_at, excluded.matched_at), coalesce(excluded.matched_at, matched_at)),
    runs = runs + 1,
    rows_total = rows_total + excluded.rows_total

-- name: earlier
-- The last run that decides the verdict of a table.
SELECT max(seq) AS seq FROM table_runs
 WHERE table_name = :table_name AND cluster_name = :cluster_name AND nodes = :nodes AND seq <> :seq
   AND (is_whole OR verdict = 'DIFFER')

-- name: states
-- Differences and problems first, then the oldest proof.
SELECT s.table_name, s.cluster_name, s.nodes, s.matched_at, s.runs, s.rows_total, r.task_id, r.mode, r.is_whole, r.verdict,
       r.differences, r.kinds, r.positions, r.rows, r.seconds, r.started_at, r.finished_at
  FROM table_states s JOIN table_runs r ON r.seq = s.decided_by
 ORDER BY s.table_name, s.cluster_name, s.nodes

-- name: runs
-- The newest first.
SELECT task_id, cluster_name, nodes, table_name, mode, is_whole, verdict, differences, kinds, positions, rows, seconds,
       started_at, finished_at
  FROM table_runs
 WHERE (:table_name IS NULL OR table_name = :table_name)
   AND (:cluster_name IS NULL OR cluster_name = :cluster_name)
   AND (:nodes IS NULL OR nodes = :nodes)
 ORDER BY seq DESC
 LIMIT :limit

-- name: forget
-- Rows of table_runs that no state refers to.
DELETE FROM table_runs WHERE finished_at < :before AND seq NOT IN (SELECT decided_by FROM table_states)
