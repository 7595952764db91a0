"""What is due next, and how the last run of each job came out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from trueup.report.text import aligned, moment
from trueup.store import RUNNING, Task, TaskStore, times
from trueup.verbs.schedule.model import SCHEDULED, Job
from trueup.verbs.schedule.times import next_time


@dataclass(frozen=True)
class Due:
    """One job: when it is due, and what became of it last."""

    name: str
    command: str
    when: str
    next: str
    last: str = ""
    status: str = ""
    result: str = ""
    task_id: str = ""


def last_runs(jobs: Sequence[Job], store: TaskStore) -> dict[str, Task]:
    """The last run of every job that was run, by its name."""
    homes = {job.config for job in jobs}
    # The newest come first, and the last one of a job stands.
    runs = [task for task in store.list(limit=-1, task_type=SCHEDULED) if task.task_context.get("config") in homes]
    return {task.table_name: task for task in reversed(runs)}


def due(jobs: Sequence[Job], store: TaskStore) -> list[Due]:
    """Every job, in the order of the configuration."""
    now, last = datetime.now(timezone.utc), last_runs(jobs, store)
    return [_due(job, last.get(job.name), now) for job in jobs]


def _due(job: Job, task: Task | None, now: datetime) -> Due:
    at = next_time(job, times.parse(task.started_at) if task else None, now)
    following = times.iso(at) if at else ""
    if task is None:
        return Due(job.name, job.command, job.when, following)
    found: Any = task.task_context.get("diff_summary") or {}
    result = "" if task.task_status == RUNNING else str(found.get("meaning") or task.task_context.get("error") or "")
    return Due(job.name, job.command, job.when, following, task.started_at, task.task_status, result, task.task_id)


def due_text(jobs: Sequence[Due]) -> str:
    """A line a job."""
    rows = [["JOB", "WHEN", "NEXT (UTC)", "LAST (UTC)", "STATUS", "RESULT", "COMMAND"]]
    for job in jobs:
        rows.append(
            [
                job.name,
                job.when,
                moment(job.next),
                moment(job.last) or "-",
                job.status or "-",
                job.result or "-",
                job.command,
            ]
        )
    return "\n".join(aligned(rows))


def due_json(jobs: Sequence[Due]) -> list[dict[str, Any]]:
    """The same for programs."""
    return [asdict(job) for job in jobs]
