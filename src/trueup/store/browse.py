"""Read-only queries of the web page: pages of tasks, their number, and the runs of tables. Fast with many tasks."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from trueup.errors import StoreError
from trueup.store import history, times
from trueup.store.file import VERSION, checked_version
from trueup.store.look import opened
from trueup.store.tasks import Task, task_of

# Failures that need attention are those of the last days.
_RECENT = timedelta(days=2)
_MOST_RECENT = 50
# Switchovers are rare: all of them are in the histogram of pauses.
_SWITCHOVERS = ("SWITCHOVER", "SWITCHOVER_BACK", "SWITCHOVER_REHEARSAL")


@dataclass(frozen=True)
class Summary:
    """What the overview and the metrics need of a store."""

    counts: tuple[tuple[str, str, int], ...]
    running: tuple[Task, ...]
    # The newest tasks that failed in the last days.
    failed: tuple[Task, ...]
    switchovers: tuple[Task, ...]
    states: tuple[history.TableState, ...]
    # Sync, source and target of the tasks of syncs and switchovers.
    syncs: tuple[tuple[str, str, str], ...]


def summary(path: Path) -> Summary:
    """Return the summary of a store. Raises StoreError if it cannot be read."""
    with _current(path) as connection:
        counts = connection.execute("SELECT task_type, task_status, count(*) FROM tasks GROUP BY 1, 2").fetchall()
        running = connection.execute("SELECT * FROM tasks WHERE task_status = 'RUNNING' ORDER BY seq DESC").fetchall()
        since = times.iso(datetime.now(timezone.utc) - _RECENT)
        failed = connection.execute(
            "SELECT * FROM tasks WHERE task_status = 'FAILED' AND started_at > ? ORDER BY started_at DESC LIMIT ?",
            (since, _MOST_RECENT),
        ).fetchall()
        moved = connection.execute(
            f"SELECT * FROM tasks WHERE task_type IN ({_marks(_SWITCHOVERS)}) ORDER BY started_at DESC", _SWITCHOVERS
        ).fetchall()
        # A range of the index: all types that begin with SYNC.
        syncs = connection.execute(
            "SELECT DISTINCT json_extract(task_context, '$.sync'), json_extract(task_context, '$.from'),"
            " json_extract(task_context, '$.to') FROM tasks WHERE task_type >= 'SYNC_' AND task_type < 'SYNC`'"
            " AND json_valid(task_context)"
        ).fetchall()
        return Summary(
            tuple((row[0], row[1], row[2]) for row in counts),
            tuple(map(task_of, running)),
            tuple(map(task_of, failed)),
            tuple(map(task_of, moved)),
            tuple(history.states(connection)),
            tuple(sorted((str(a), str(b), str(c)) for a, b, c in syncs if a and b and c)),
        )


@dataclass(frozen=True)
class Filter:
    """Which tasks a page lists; '' does not restrict."""

    task_type: str = ""
    status: str = ""
    # Tasks that are older than this one: the end of the page before.
    before: str = ""
    before_id: str = ""


def page(path: Path, chosen: Filter, limit: int) -> list[Task]:
    """Return at most `limit` tasks, the newest first."""
    conditions: list[str] = []
    if chosen.task_type:
        conditions.append("task_type = :task_type")
    if chosen.status:
        conditions.append("task_status = :status")
    if chosen.before:
        conditions.append("started_at <= :before AND (started_at < :before OR task_id < :before_id)")
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    query = f"SELECT * FROM tasks {where} ORDER BY started_at DESC, task_id DESC LIMIT :limit"
    with _current(path) as connection:
        return [task_of(row) for row in connection.execute(query, {**vars(chosen), "limit": limit})]


def find(path: Path, task_id: str) -> Task | None:
    """Return the task with this id, or None."""
    with _current(path) as connection:
        row = connection.execute("SELECT * FROM tasks WHERE task_id = ?", (task_id,)).fetchone()
        return task_of(row) if row else None


def runs(path: Path, table: str, cluster: str, nodes: str, limit: int) -> list[history.TableRun]:
    """Return the last runs of a table on a set of nodes, the newest first."""
    with _current(path) as connection:
        return history.runs(connection, table=table, cluster=cluster, nodes=nodes, limit=limit)


def trends(path: Path, scopes: Sequence[tuple[str, str, str]], limit: int) -> list[history.TableRun]:
    """Return the last runs of several tables, each with cluster and nodes."""
    with _current(path) as connection:
        return [
            run
            for table, cluster, nodes in scopes
            for run in history.runs(connection, table=table, cluster=cluster, nodes=nodes, limit=limit)
        ]


def actions(path: Path, limit: int) -> list[dict[str, Any]]:
    """Return the actions of the web page, the newest first."""
    with _current(path) as connection:
        rows = connection.execute(
            "SELECT at, who, action, target, outcome FROM actions ORDER BY seq DESC LIMIT ?", (limit,)
        )
        return [dict(row) for row in rows]


def _marks(values: Sequence[str]) -> str:
    return ", ".join("?" * len(values))


@contextmanager
def _current(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a store that exists and has the current tables."""
    if not path.exists():
        raise StoreError(f"the task store {path} does not exist", cure="it is created by the first command that runs")
    with opened(path) as connection:
        version = checked_version(connection, path)
        if version < VERSION:
            message = f"the task store {path} has version {version}, which is older than this trueup"
            raise StoreError(message, cure="upgrade it with: trueup tasks")
        yield connection
