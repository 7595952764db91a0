"""The page of a task without a report of rows: of many tables, of a switchover, or of any other task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trueup.report.many import page_of_many
from trueup.report.page import Page, page_of_task
from trueup.report.switchover import page_of_switchover

OF_MANY = ("TABLES_DIFF", "TABLES_CHECK", "TABLES_RERUN")


def task_page(task: Mapping[str, Any]) -> Page:
    """Return the page of a task, from its row of the task store."""
    summary = task["task_context"].get("diff_summary")
    if summary and task["task_type"] in OF_MANY:
        return page_of_many(summary, task["task_id"])
    if summary and task["task_type"].startswith("SWITCHOVER"):
        return page_of_switchover(summary)
    return page_of_task(task)
