"""Starts, updates, finishes and finds tasks.

A task has one of four statuses:

    RUNNING        a process works on it. There is no waiting state: a task exists once its work has started
    COMPLETED      the work finished; its result, match or not, is in the summary
    FAILED         the work stopped with an error, or its process died
    INTERRUPTED    the user stopped it

A killed process cannot record its end. Therefore every opening and every query of the store first sweeps: RUNNING
tasks whose process is dead become FAILED, so that plain SQLite readers see it as well. Such a task ends at its last
heartbeat. Only a swept task can change its status again: by a heartbeat or `finish` of an owner that is alive after
all (on another host, without a heartbeat for too long).
"""

from __future__ import annotations

import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from trueup.config.trust import why_not_trusted
from trueup.errors import StoreError
from trueup.store import accepted, alerts, history, statements, times
from trueup.store.file import open_database, sql, tasks_db_path, transaction, translated
from trueup.store.look import why_task_lost
from trueup.store.owner import this_process
from trueup.store.values import from_json, plain_mapping, safe_text, to_json, utf8

RUNNING = "RUNNING"
COMPLETED = "COMPLETED"
FAILED = "FAILED"
INTERRUPTED = "INTERRUPTED"
FINAL = (COMPLETED, FAILED, INTERRUPTED)

# The stores in which this process has ended a task: a command looks for alerts there.
ENDED_IN: set[Path] = set()

# The keys of the context that `finish` writes; a request must not use them.
RESULT_KEYS = ("diff_summary", "error")
_SHOWN = 5


@dataclass(frozen=True)
class Task:
    """One row of the store, with the names of its columns. Times are UTC, for example `2025-07-22T12:03:51.042Z`."""

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


# Inside TaskStore, `list` is its method.
Tasks: TypeAlias = "list[Task]"
States: TypeAlias = "list[history.TableState]"
Runs: TypeAlias = "list[history.TableRun]"
Changes: TypeAlias = "list[alerts.Change]"
Acceptances: TypeAlias = "list[accepted.Acceptance]"
Statements: TypeAlias = "list[statements.Issued]"
AcceptedDifferences: TypeAlias = "list[accepted.AcceptedDifference]"


class TaskStore:
    """An open task store. Threads may share it; a forked process must open its own."""

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
        """Record a new task, RUNNING in this process; `context` is its request."""
        taken = [key for key in RESULT_KEYS if key in context]
        if taken:
            message = f"the context of a task must not have the key {taken[0]!r}: it is reserved for the result"
            raise StoreError(message, cure="use another key in the request")
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
            return task_of(self._row(task_id))

    def heartbeat(self, task_id: str, progress: Mapping[str, object] | None = None) -> None:
        """Record that the task is alive, and its progress. Does nothing if the task is finished."""
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
        """Record the end of a task. Raises StoreError if the task has already ended."""
        if status not in FINAL:
            raise StoreError(f"{status!r} is not a final status of a task", cure=f"use one of {', '.join(FINAL)}")
        with self._writing() as connection:
            row = self._row(task_id)
            if row["task_status"] != RUNNING and not row["lost"]:
                cure = "start a new task for more work"
                raise StoreError(f"task {task_id} has already ended with status {row['task_status']}", cure=cure)
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
            ended = self._row(task_id)
            history.record(connection, dict(ended))
            ENDED_IN.add(self.path)
            return task_of(ended)

    def reopen(self, task_id: str) -> Task:
        """Continue a task that did not complete: it becomes RUNNING in this process, with its old id."""
        with self._writing() as connection:
            row = self._row(task_id)
            if row["task_status"] in (RUNNING, COMPLETED):
                cure = "wait until it ends, or stop it first" if row["task_status"] == RUNNING else "start a new task"
                raise StoreError(
                    f"task {task_id[:8]} cannot be continued: its status is {row['task_status']}", cure=cure
                )
            context = from_json(row["task_context"])
            for key in RESULT_KEYS:
                context.pop(key, None)
            again = {"task_id": task_id, "context": to_json(context), "now": times.now(), **vars(this_process())}
            connection.execute(sql("reopen.sql"), again)
            return task_of(self._row(task_id))

    def ask(self, task_id: str, wanted: str) -> None:
        """Request 'pause' or 'stop' of a running task; '' resumes a paused one. The task polls for requests."""
        with self._writing() as connection:
            row = self._row(task_id)
            if row["task_status"] != RUNNING:
                message = f"task {task_id[:8]} is not running: its status is {row['task_status']}"
                raise StoreError(message, cure="list running tasks with: trueup tasks")
            connection.execute("UPDATE tasks SET wanted = ? WHERE task_id = ?", (wanted, task_id))

    def wanted(self, task_id: str) -> str:
        """Return what was requested of the task: 'pause', 'stop' or ''."""
        with self._reading():
            return str(self._row(task_id)["wanted"])

    def folder(self) -> Path:
        """Return a private folder next to the file, for data that tasks keep while they run."""
        folder = self.path.with_name(self.path.name + ".d")
        with translated(self.path):
            folder.mkdir(mode=0o700, exist_ok=True)
        if reason := why_not_trusted(folder):
            cure = "remove the folder, or change its owner and mode"
            raise StoreError(f"the folder {folder} is not used, because {reason}", cure=cure)
        return folder

    def get(self, id_or_prefix: str) -> Task:
        """Return the task with this id, or the only one whose id starts with it. Raises StoreError otherwise."""
        prefix = utf8(id_or_prefix).strip().lower()
        self._sweep()
        with self._reading() as connection:
            query = "SELECT * FROM tasks WHERE :p <> '' AND instr(task_id, :p) = 1 ORDER BY seq DESC"
            rows = connection.execute(query, {"p": prefix}).fetchall()
        if len(rows) == 1:
            return task_of(rows[0])
        if not rows:
            cure = f"list the tasks with: trueup tasks (the store is {self.path})"
            raise StoreError(f"task {id_or_prefix!r} does not exist", cure=cure)
        shown = ", ".join(row["task_id"] for row in rows[:_SHOWN]) + (", …" if len(rows) > _SHOWN else "")
        cure = f"use a longer prefix; the newest matches are: {shown}"
        raise StoreError(f"{len(rows)} tasks have an id that starts with {id_or_prefix!r}", cure=cure)

    def list(
        self, *, limit: int = 20, task_type: str | None = None, status: str | None = None, table: str | None = None
    ) -> Tasks:
        """Return the tasks, newest first; a negative limit returns all."""
        self._sweep()
        parameters = {"limit": limit, "task_type": task_type, "status": status, "table_name": table}
        with self._reading() as connection:
            return [task_of(row) for row in connection.execute(sql("list.sql"), parameters)]

    def states(self) -> States:
        """Return the state of every table that was compared, by name."""
        self._sweep()
        with self._reading() as connection:
            return history.states(connection)

    def runs(
        self, table: str | None = None, *, cluster: str | None = None, nodes: str | None = None, limit: int = -1
    ) -> Runs:
        """Return the runs of a table, or of all tables, the newest first; a negative limit returns all."""
        self._sweep()
        with self._reading() as connection:
            return history.runs(connection, table=table, cluster=cluster, nodes=nodes, limit=limit)

    def accept(
        self,
        *,
        table: str,
        nodes: str,
        scope: Mapping[str, Any],
        reason: str,
        by: str,
        until: str | None,
        task_id: str,
        report: str,
        differences: Iterable[accepted.AcceptedDifference],
    ) -> accepted.Acceptance:
        """Record differences of a table that are known and wanted."""
        with self._writing() as connection:
            return accepted.add(
                connection,
                table=table,
                nodes=nodes,
                scope=scope,
                reason=reason,
                by=by,
                until=until,
                task_id=task_id,
                report=report,
                differences=differences,
            )

    def acceptances(self, table: str | None = None) -> Acceptances:
        """Return the acceptances of a table, or of all tables, the newest first; also those that are not in effect."""
        with self._reading() as connection:
            return accepted.listed(connection, table)

    def accepted_differences(self, acceptance: accepted.Acceptance) -> AcceptedDifferences:
        """Return the differences of an acceptance."""
        with self._reading() as connection:
            return accepted.differences(connection, acceptance)

    def revoke(self, id_or_prefix: str, *, by: str) -> accepted.Acceptance:
        """End an acceptance before its time."""
        with self._writing() as connection:
            return accepted.revoke(connection, id_or_prefix, by)

    def issue(self, make: Callable[[statements.Issued | None, str], statements.Issued]) -> statements.Issued:
        """Add a certificate to the chain of this store; `make` gets the last one and the id of the chain."""
        with self._writing() as connection:
            return statements.append(connection, make)

    def issued(self) -> Statements:
        """Return all certificates that were issued, the oldest first."""
        with self._reading() as connection:
            return statements.listed(connection)

    def certificate(self, number: int) -> statements.Issued:
        """Return a certificate by its number. Raises StoreError if there is none."""
        with self._reading() as connection:
            return statements.get(connection, number)

    def ended_before(self, moment: str) -> Tasks:
        """Return the tasks that ended before a time, the oldest first."""
        query = "SELECT * FROM tasks WHERE task_status <> 'RUNNING' AND finished_at < ? ORDER BY finished_at, seq"
        with self._reading() as connection:
            return [task_of(row) for row in connection.execute(query, (moment,))]

    def delete(self, tasks: Sequence[Task]) -> None:
        """Delete tasks that have ended. The history of their tables stays."""
        with self._writing() as connection:
            rows = [(task.task_id, task.finished_at) for task in tasks]
            # A task that was resumed since has another end.
            connection.executemany("DELETE FROM tasks WHERE task_id = ? AND finished_at = ?", rows)

    def forget(self, moment: str) -> int:
        """Delete the history before a time, except the runs that decide the verdict of a table; return how many."""
        with self._writing() as connection:
            return history.forget(connection, moment)

    def record_action(self, who: str, action: str, target: str) -> int:
        """Record what a user of the web page requests, before it is done; return the number of the record."""
        row = (times.now(), *(safe_text(text)[:1000] for text in (who, action, target)))
        with self._writing() as connection:
            statement = "INSERT INTO actions (at, who, action, target, outcome) VALUES (?, ?, ?, ?, 'begun')"
            return int(connection.execute(statement, row).lastrowid or 0)

    def end_action(self, number: int, outcome: str) -> None:
        """Record what became of an action."""
        with self._writing() as connection:
            connection.execute("UPDATE actions SET outcome = ? WHERE seq = ?", (safe_text(outcome)[:1000], number))

    def claim_alerts(
        self,
        targets: Iterable[str],
        raised: Mapping[str, tuple[str, str]],
        is_known: Callable[[str], bool],
        *,
        once: Sequence[str],
        repeat_after: float,
    ) -> Changes:
        """Claim what has to be sent to targets: see `alerts.claim`."""
        with self._writing() as connection:
            return alerts.claim(connection, targets, raised, is_known, once=once, repeat_after=repeat_after)

    def confirm_alerts(self, changes: Sequence[alerts.Change]) -> None:
        """Record that changes were sent."""
        with self._writing() as connection:
            alerts.confirm(connection, changes)

    def release_alerts(self, changes: Sequence[alerts.Change]) -> None:
        """End the claim on changes that could not be sent."""
        with self._writing() as connection:
            alerts.release(connection, changes)

    def close(self) -> None:
        """Close the file. Unfinished tasks of this process stay RUNNING until the process ends."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> TaskStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _sweep(self) -> None:
        """Mark RUNNING tasks whose process is dead as FAILED."""
        with self._reading() as connection:
            rows = connection.execute("SELECT * FROM tasks WHERE task_status = 'RUNNING'").fetchall()
        ends = [end for row in rows if (end := _end_of_lost(row))]
        if ends:
            with self._writing() as connection:
                for end in ends:
                    if connection.execute(sql("lose.sql"), end).rowcount:
                        history.record(connection, dict(self._row(str(end["task_id"]))))

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
            cure = f"check that the task was started in this store ({self.path})"
            raise StoreError(f"task {task_id!r} does not exist", cure=cure)
        assert isinstance(row, sqlite3.Row)
        return row


def task_of(row: sqlite3.Row) -> Task:
    """Return a row of the table `tasks`."""
    values = {name: row[name] for name in Task.__dataclass_fields__}
    values["task_context"] = from_json(row["task_context"])
    values["progress"] = from_json(row["progress"])
    return Task(**values)


def _end_of_lost(row: sqlite3.Row) -> dict[str, object] | None:
    reason = why_task_lost(row)
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
