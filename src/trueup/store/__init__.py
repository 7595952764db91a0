"""The task store: one SQLite file that remembers every task, who runs it, and how it ended.

Reading order: `tasks` (what can be done with a task), `schema.sql` (what is kept of
it), `owner` (does the process behind a task still live), `values` (what may go into the JSON columns), `file` (where
the file is, and how it is opened).
"""

from __future__ import annotations

from trueup.store.file import tasks_db_path
from trueup.store.tasks import COMPLETED, FAILED, INTERRUPTED, RUNNING, Task, TaskStore

__all__ = ["COMPLETED", "FAILED", "INTERRUPTED", "RUNNING", "Task", "TaskStore", "tasks_db_path"]
