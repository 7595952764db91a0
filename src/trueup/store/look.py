"""Read-only access to the task store: the file is not created, upgraded or scrubbed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from trueup.store import times
from trueup.store.file import checked_version, translated
from trueup.store.owner import Owner, why_lost


@dataclass(frozen=True)
class Look:
    """The state of a store: number of tasks, tasks whose process is dead, and the result of the integrity check."""

    version: int
    tasks: int
    running: int
    # Tasks with status RUNNING whose process is dead: id and reason.
    lost: tuple[tuple[str, str], ...]
    # The errors of the integrity check; empty if there are none.
    damage: str


class Seen(NamedTuple):
    """The columns of a task that shell completion shows."""

    task_id: str
    task_type: str
    task_status: str
    schema: str
    table_name: str


def look(path: Path) -> Look:
    """Check the whole store. Raises StoreError if it cannot be read or is not a task store."""
    with opened(path) as connection:
        version = checked_version(connection, path)
        errors = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(3)")]
        damage = "" if errors == ["ok"] else "; ".join(errors)
        if version == 0:
            return Look(0, 0, 0, (), damage)
        count = int(connection.execute("SELECT count(*) FROM tasks").fetchone()[0])
        rows = connection.execute("SELECT * FROM tasks WHERE task_status = 'RUNNING' ORDER BY seq").fetchall()
        reasons = [(str(row["task_id"]), why_task_lost(row)) for row in rows]
    lost = tuple((task_id, reason) for task_id, reason in reasons if reason is not None)
    return Look(version, count, len(rows), lost, damage)


def recent_tasks(path: Path, limit: int) -> list[Seen]:
    """Return the newest tasks, at most `limit`; an empty list if the store does not exist."""
    if not path.exists():
        return []
    with opened(path) as connection:
        if checked_version(connection, path) == 0:
            return []
        query = f"SELECT {', '.join(Seen._fields)} FROM tasks ORDER BY seq DESC LIMIT ?"
        return [Seen(*row) for row in connection.execute(query, (limit,))]


def why_task_lost(row: sqlite3.Row) -> str | None:
    """Return why the process of a RUNNING task is considered dead, or None."""
    owner = Owner(row["host"], row["boot_id"], row["pid_space"], row["pid"], row["pid_started"])
    return why_lost(owner, times.parse(row["heartbeat_at"]))


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a store that exists, for reading only."""
    with translated(path):
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=2.0, isolation_level=None)
        try:
            connection.row_factory = sqlite3.Row
            yield connection
        finally:
            connection.close()
