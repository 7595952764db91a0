"""The tasks: start one, say that it is alive, finish it, find it again.

A task has one of four statuses:

    RUNNING        its process works on it. There is no waiting state: a task exists once its work has begun
    COMPLETED      the work came to its end; what it found, match or not, is in the summary
    FAILED         the work stopped on an error, or its process is gone
    INTERRUPTED    the user stopped it

A process that is killed cannot say so. Therefore whoever opens or asks the store first looks for RUNNING
tasks whose process is gone and writes them down as FAILED, so that plain SQLite readers see it too. Such a
task ends at its last heartbeat. Only a task given up in this way can change its status again, by a
heartbeat or the end of an owner that lives after all (on another host, silent for too long).
"""

from __future__ import annotations

import sqlite3
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from trueup.errors import StoreError
from trueup.store import times
from trueup.store.file import open_database, sql, tasks_db_path, transaction, translated
from trueup.store.owner import Owner, this_process, why_lost
from trueup.store.values import from_json, plain_mapping, safe_text, to_json, utf8

RUNNING = "RUNNING"
COMPLETED = "COMPLETED"
FAILED = "FAILED"
INTERRUPTED = "INTERRUPTED"
FINAL = (COMPLETED, FAILED, INTERRUPTED)

# The keys of the context in which `finish` answers: a request may not use them, so it is never overwritten.
ANSWERS = ("diff_summary", "error")
_SHOWN = 5


@dataclass(frozen=True)
class Task:
    """One row of the store, named as its columns. Times are UTC, as `2025-07-22T12:03:51.042Z`."""

    task_id: str
    task_type: str
    task_status: str
    cluster_name: str
    task_context: Mapping[str, Any]
    schema: str
    table_name: str
    repset_name: str
    diff_file_path: str
    started_at: str
    finished_at: str | None
    time_taken: float | None
    progress: Mapping[str, Any]
    heartbeat_at: str
    host: str
    pid: int


Tasks: TypeAlias = "list[Task]"  # inside TaskStore, `list` is its method


class TaskStore:
    """The store, opened. Threads may share it; a forked process opens its own."""

    def __init__(self, path: str | Path | None = None, *, configured: str = "") -> None:
        self.path = tasks_db_path(path, configured)
        self._lock = threading.RLock()
        self._connection = open_database(self.path)
        try:
            self._sweep()
        except BaseException:
            self.close()
            raise

    def start(
        self,
        task_type: str,
        *,
        cluster: str = "",
        schema: str = "",
        table: str = "",
        repset: str = "",
        context: Mapping[str, object],
    ) -> Task:
        """Write down a new task, RUNNING in this process; the context is its request."""
        taken = [key for key in ANSWERS if key in context]
        if taken:
            message = f"the context of a task may not have the key {taken[0]!r}: it is kept for the answer"
            raise StoreError(message, cure="give the request another name for it")
        task_id = str(uuid.uuid4())
        row = {
            "task_id": task_id,
            "task_type": task_type,
            "cluster_name": safe_text(cluster),
            "task_context": to_json(plain_mapping(context)),
            "schema": utf8(schema),
            "table_name": utf8(table),
            "repset_name": utf8(repset),
            "started_at": times.now(),
            **vars(this_process()),
        }
        with self._writing() as connection:
            connection.execute(sql("start.sql"), row)
            return _task(self._row(task_id))

    def heartbeat(self, task_id: str, progress: Mapping[str, object] | None = None) -> None:
        """Say that the task is alive, and how far it is. Does nothing to a task that is finished."""
        text = None if progress is None else to_json(plain_mapping(progress))
        with self._writing() as connection:
            row = self._row(task_id)
            if row["lost"]:
                connection.execute(sql("revive.sql"), {"task_id": task_id, "context": _without_error(row)})
            elif row["task_status"] != RUNNING:
                return
            beat = "UPDATE tasks SET heartbeat_at = ?, progress = coalesce(?, progress) WHERE task_id = ?"
            connection.execute(beat, (times.now(), text, task_id))

    def finish(
        self,
        task_id: str,
        status: str,
        *,
        summary: Mapping[str, object] | None = None,
        error: str | None = None,
        diff_file_path: str = "",
    ) -> Task:
        """Write down how the task ended, beside its request: the first end that is told stands."""
        if status not in FINAL:
            raise StoreError(f"a task cannot end as {status!r}", cure=f"use one of {', '.join(FINAL)}")
        with self._writing() as connection:
            row = self._row(task_id)
            if row["task_status"] != RUNNING and not row["lost"]:
                cure = "start a new task for more work"
                raise StoreError(f"task {task_id} has ended before, as {row['task_status']}", cure=cure)
            context = from_json(_without_error(row) if row["lost"] else row["task_context"])
            if summary is not None:
                context["diff_summary"] = plain_mapping(summary)
            if error is not None:
                context["error"] = safe_text(error)
            finished_at = times.now()
            end = {
                "task_id": task_id,
                "status": status,
                "context": to_json(context),
                "diff_file_path": safe_text(diff_file_path),
                "finished_at": finished_at,
                "time_taken": times.seconds_between(row["started_at"], finished_at),
            }
            connection.execute(sql("finish.sql"), end)
            return _task(self._row(task_id))

    def reopen(self, task_id: str) -> Task:
        """Take up a task again that stopped before its end: it is RUNNING in this process, under its old id."""
        with self._writing() as connection:
            row = self._row(task_id)
            if row["task_status"] in (RUNNING, COMPLETED):
                cure = "wait for it, or stop it first" if row["task_status"] == RUNNING else "start a new task"
                raise StoreError(f"task {task_id[:8]} cannot be taken up again: it is {row['task_status']}", cure=cure)
            context = from_json(row["task_context"])
            for answer in ANSWERS:
                context.pop(answer, None)
            again = {"task_id": task_id, "context": to_json(context), "now": times.now(), **vars(this_process())}
            connection.execute(sql("reopen.sql"), again)
            return _task(self._row(task_id))

    def ask(self, task_id: str, wanted: str) -> None:
        """Ask a running task to 'pause' or 'stop'; '' lets a paused one go on. It answers when it next looks."""
        with self._writing() as connection:
            row = self._row(task_id)
            if row["task_status"] != RUNNING:
                message = f"task {task_id[:8]} does not run: it is {row['task_status']}"
                raise StoreError(message, cure="see what runs with: trueup tasks")
            connection.execute("UPDATE tasks SET wanted = ? WHERE task_id = ?", (wanted, task_id))

    def wanted(self, task_id: str) -> str:
        """What somebody asked of the task: 'pause', 'stop', or nothing."""
        with self._reading():
            return str(self._row(task_id)["wanted"])

    def folder(self) -> Path:
        """A folder beside the file, private to its owner, for what tasks keep while they run."""
        folder = self.path.with_name(self.path.name + ".d")
        with translated(self.path):
            folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def get(self, id_or_prefix: str) -> Task:
        """The task of this id, or the only one whose id begins like this."""
        prefix = utf8(id_or_prefix).strip().lower()
        self._sweep()
        with self._reading() as connection:
            query = "SELECT * FROM tasks WHERE :p <> '' AND instr(task_id, :p) = 1 ORDER BY seq DESC"
            rows = connection.execute(query, {"p": prefix}).fetchall()
        if len(rows) == 1:
            return _task(rows[0])
        if not rows:
            cure = f"list the tasks to see their ids (the store is {self.path})"
            raise StoreError(f"there is no task {id_or_prefix!r}", cure=cure)
        shown = ", ".join(row["task_id"] for row in rows[:_SHOWN]) + (", …" if len(rows) > _SHOWN else "")
        cure = f"give more of the id; the newest are: {shown}"
        raise StoreError(f"{len(rows)} tasks have an id that begins with {id_or_prefix!r}", cure=cure)

    def list(self, *, limit: int = 20, task_type: str | None = None, status: str | None = None) -> Tasks:
        """The tasks, newest first; a limit below zero means all."""
        self._sweep()
        wanted = {"limit": limit, "task_type": task_type, "status": status}
        with self._reading() as connection:
            return [_task(row) for row in connection.execute(sql("list.sql"), wanted)]

    def close(self) -> None:
        """Close the file. Tasks that this process has not finished stay RUNNING until it ends."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> TaskStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _sweep(self) -> None:
        """Write down as FAILED what runs no more."""
        with self._reading() as connection:
            rows = connection.execute("SELECT * FROM tasks WHERE task_status = 'RUNNING'").fetchall()
        ends = [end for row in rows if (end := _end_of_lost(row))]
        if ends:
            with self._writing() as connection:
                connection.executemany(sql("lose.sql"), ends)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, translated(self.path):
            yield self._connection

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._reading() as connection, transaction(connection):
            yield connection

    def _row(self, task_id: str) -> sqlite3.Row:
        row = self._connection.execute("SELECT * FROM tasks WHERE task_id = ?", (task_id,)).fetchone()
        if row is None:
            cure = f"check that it was started in this store, {self.path}"
            raise StoreError(f"there is no task {task_id!r}", cure=cure)
        assert isinstance(row, sqlite3.Row)
        return row


def _task(row: sqlite3.Row) -> Task:
    values = {name: row[name] for name in Task.__dataclass_fields__}
    values["task_context"] = from_json(row["task_context"])
    values["progress"] = from_json(row["progress"])
    return Task(**values)


def _end_of_lost(row: sqlite3.Row) -> dict[str, object] | None:
    owner = Owner(row["host"], row["boot_id"], row["pid_space"], row["pid"], row["pid_started"])
    reason = why_lost(owner, times.parse(row["heartbeat_at"]))
    if reason is None:
        return None
    return {
        "task_id": row["task_id"],
        "context": to_json({**from_json(row["task_context"]), "error": reason}),
        "heartbeat_at": row["heartbeat_at"],
        "time_taken": times.seconds_between(row["started_at"], row["heartbeat_at"]),
    }


def _without_error(row: sqlite3.Row) -> str:
    context = from_json(row["task_context"])
    context.pop("error", None)
    return to_json(context)
