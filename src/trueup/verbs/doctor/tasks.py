"""Checks of the task store: integrity, permissions, running tasks without a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trueup.config.wording import counted
from trueup.errors import StoreError
from trueup.store.file import VERSION, tasks_db_path
from trueup.store.look import Look, look
from trueup.verbs.doctor.model import DoctorRequest, Finding, fail, failed, ok, warn

CHECK = "tasks"
WHERE = "task store"
_SHOWN = 5


def check(request: DoctorRequest) -> Iterator[Finding]:
    """Yield findings about the task store, without changing it."""
    path = tasks_db_path(request.task_db, request.config.tasks.task_db)
    if not path.exists():
        yield ok(CHECK, WHERE, f"{path} does not exist yet: the first run creates it")
        return
    if not path.is_file():
        yield fail(CHECK, WHERE, f"{path} is not a file", "set TRUEUP_TASKS_DB to another file")
        return
    try:
        state = look(path)
    except StoreError as error:
        yield failed(CHECK, WHERE, error)
        return
    yield _integrity(path, state)
    yield from _permissions(path)
    if state.lost:
        listed = ", ".join(f"{task_id[:8]} ({reason})" for task_id, reason in state.lost[:_SHOWN])
        more = f" and {len(state.lost) - _SHOWN} more" if len(state.lost) > _SHOWN else ""
        cure = "run `trueup tasks`, which marks them as FAILED"
        yield warn(CHECK, WHERE, f"tasks with status RUNNING without a process: {listed}{more}", cure)


def _integrity(path: Path, state: Look) -> Finding:
    if state.damage:
        cure = "move the file and its -wal and -shm files away to start a new one"
        return fail(CHECK, WHERE, f"{path} is damaged: {state.damage}", cure)
    upgrade = f" (the next run upgrades it to {VERSION})" if state.version < VERSION else ""
    alive = state.running - len(state.lost)
    counts = f"{counted(state.tasks, 'task')}, {alive:,} of them running"
    return ok(CHECK, WHERE, f"{path} is intact: {counts}, version {state.version}{upgrade}")


def _permissions(path: Path) -> Iterator[Finding]:
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        yield warn(CHECK, WHERE, f"other users can read or write {path} (mode {mode:03o})", f"chmod 600 {path}")
