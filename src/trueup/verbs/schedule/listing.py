"""The next time and the last result of each job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from trueup.config.visible import as_lines
from trueup.report.text import aligned, moment
from trueup.store import RUNNING, Task, TaskStore, times
from trueup.verbs.schedule.model import SCHEDULED, Job
from trueup.verbs.schedule.times import next_time

# Runs of jobs with one name that are searched for those of this configuration.
_MOST_RUNS = 500


@dataclass(frozen=True)
class Due:
    """One job with its next time and its last result."""

    name: str
    command: str
    when: str
    next: str
    last: str = ""
    status: str = ""
    result: str = ""
    task_id: str = ""


def last_runs(jobs: Sequence[Job], store: TaskStore) -> dict[str, Task]:
    """Return the last run of every job that has run, by name."""
    last: dict[str, Task] = {}
    for job in jobs:
        # Other files may have jobs with the same name.
        listed = store.list(limit=_MOST_RUNS, task_type=SCHEDULED, table=job.name)
        own = [task for task in listed if task.task_context.get("config") == job.config]
        if own:
            last[job.name] = own[0]
    return last


def due(jobs: Sequence[Job], store: TaskStore) -> list[Due]:
    """Return every job, in the order of the configuration."""
    now, last = datetime.now(timezone.utc), last_runs(jobs, store)
    return [_due(job, last.get(job.name), now) for job in jobs]


def _due(job: Job, task: Task | None, now: datetime) -> Due:
    time = next_time(job, times.parse(task.started_at) if task else None, now)
    following = times.iso(time) if time else ""
    if task is None:
        return Due(job.name, job.command, job.when, following)
    summary: Any = task.task_context.get("diff_summary") or {}
    result = "" if task.task_status == RUNNING else str(summary.get("meaning") or task.task_context.get("error") or "")
    return Due(job.name, job.command, job.when, following, task.started_at, task.task_status, result, task.task_id)


def due_text(jobs: Sequence[Due]) -> str:
    """Return one line per job."""
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
    return as_lines(aligned(rows))


def due_json(jobs: Sequence[Due]) -> list[dict[str, Any]]:
    """Return the jobs as JSON objects."""
    return [asdict(job) for job in jobs]
