"""The three documented analytics queries, on the file opened with sqlite3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trueup.store import COMPLETED, FAILED, TaskStore

Query = Callable[..., list[tuple[Any, ...]]]

RECENT = """
SELECT task_id, task_status, started_at, finished_at, time_taken, diff_file_path
FROM ace_tasks
WHERE task_type = 'TABLE_DIFF'
ORDER BY started_at DESC
LIMIT 20;
"""

COUNTS = """
SELECT task_status, COUNT(*)
FROM ace_tasks
WHERE task_type = 'TABLE_DIFF'
  AND started_at >= datetime('now','-7 day')
GROUP BY task_status;
"""

DRIFT = """
SELECT
  task_id,
  json_extract(task_context, '$.diff_summary.total_rows_checked')   AS rows_checked,
  json_extract(task_context, '$.diff_summary.mismatched_ranges_count') AS mismatched_ranges,
  json_extract(task_context, '$.diff_summary.diff_row_limit_reached')  AS limit_hit
FROM ace_tasks
WHERE task_type = 'TABLE_DIFF'
ORDER BY started_at DESC
LIMIT 20;
"""

SEED_COLUMNS = [
    "task_id",
    "task_type",
    "task_status",
    "cluster_name",
    "task_context",
    "schema",
    "table_name",
    "repset_name",
    "diff_file_path",
    "started_at",
    "finished_at",
    "time_taken",
]
ISO = "%Y-%m-%dT%H:%M:%fZ"


def done(store: TaskStore, status: str = COMPLETED, task_type: str = "TABLE_DIFF", **end: Any) -> str:
    task = store.start(task_type, context={"mode": "diff"})
    return store.finish(task.task_id, status, **end).task_id


def test_the_view_has_exactly_the_documented_columns(store: TaskStore, query: Query) -> None:
    assert [row[1] for row in query("PRAGMA table_info(ace_tasks)")] == SEED_COLUMNS


def test_recent_runs(store: TaskStore, query: Query) -> None:
    ids = [done(store, diff_file_path=f"d{number}.json") for number in range(22)]
    done(store, task_type="TABLE_CHECK")
    for number, task_id in enumerate(ids):
        age(query, task_id, f"-{30 - number} minutes")
    rows = query(RECENT)
    assert [row[0] for row in rows] == ids[:1:-1]
    newest = store.get(ids[21])
    assert newest.finished_at is not None
    assert rows[0][1] == COMPLETED
    assert rows[0][2].replace(" ", "T") + "Z" == newest.started_at
    assert rows[0][3].replace(" ", "T") + "Z" == newest.finished_at
    assert rows[0][4:] == (newest.time_taken, "d21.json")


def test_recent_runs_within_one_second(store: TaskStore, query: Query) -> None:
    second, first, third = done(store), done(store), done(store)
    for task_id, millisecond in ((first, 1), (second, 2), (third, 3)):
        query(
            "UPDATE tasks SET started_at = ? WHERE task_id = ?",
            f"2026-01-01T00:00:00.00{millisecond}Z",
            task_id,
        )
    assert [row[0] for row in query(RECENT)] == [third, second, first]


def test_a_running_task_has_no_end_yet(store: TaskStore, query: Query) -> None:
    task = store.start("TABLE_DIFF", context={})
    assert [row[1:2] + row[3:] for row in query(RECENT)] == [("RUNNING", None, None, "")]
    assert query(RECENT)[0][0] == task.task_id


def test_counts_of_the_last_seven_days(store: TaskStore, query: Query) -> None:
    age(query, done(store), "-6 days", "-23 hours")
    age(query, done(store), "-6 days", "-23 hours", "-59 minutes")
    age(query, done(store), "-1 second")
    age(query, done(store, FAILED, error="x"), "-1 day")
    done(store, task_type="TABLE_CHECK")
    age(query, done(store), "-7 days", "-1 hour")
    age(query, done(store), "-7 days", "-1 minute")
    age(query, done(store), "-400 days")
    assert sorted(query(COUNTS)) == [(COMPLETED, 3), (FAILED, 1)]


def test_the_first_moment_of_the_boundary_day_is_too_old(store: TaskStore, query: Query) -> None:
    # With the T of ISO 8601 this one would count, at whatever hour the test runs.
    age(query, done(store), "-7 days", "start of day")
    assert query(COUNTS) == []


def test_drift_by_run(store: TaskStore, query: Query) -> None:
    summary = {"total_rows_checked": 1000, "mismatched_ranges_count": 2, "diff_row_limit_reached": True}
    first = done(store, summary={**summary, "ratio": float("nan"), "note": "Zürich – 東京 '\"\\ \x00"})
    second = done(store, FAILED, error="it broke")
    age(query, first, "-1 minute")
    assert query(DRIFT) == [(second, None, None, None), (first, 1000, 2, 1)]


def age(query: Query, task_id: str, *steps: str) -> None:
    """Make a task older, by date modifiers of SQLite."""
    marks = ", ".join("?" for _ in steps)
    moved = f"strftime('{ISO}', 'now', {marks})"
    query(f"UPDATE tasks SET started_at = {moved} WHERE task_id = ?", *steps, task_id)
