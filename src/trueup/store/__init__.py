"""The task store: a SQLite file that records every task, the process that runs it, and its result.

Reading order: `tasks` (start, update, finish and find tasks), `history` (one row per table and run), `accepted`
(differences that are known and wanted), `statements` (certificates that were issued), `prune` (delete old tasks and
their reports), `alerts` (which were sent), `owner` (whether the process of a task still exists), `values` (conversion
to JSON columns), `times` (timestamps as text), `file` (location, creation and upgrade of the file), `look` and `browse`
(read-only access for doctor, shell completion, and the web page). The tables are in schema.sql.
"""

from __future__ import annotations

from trueup.store.file import tasks_db_path
from trueup.store.tasks import COMPLETED, FAILED, INTERRUPTED, RUNNING, Task, TaskStore

__all__ = ["COMPLETED", "FAILED", "INTERRUPTED", "RUNNING", "Task", "TaskStore", "tasks_db_path"]
