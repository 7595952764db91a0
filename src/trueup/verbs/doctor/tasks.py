"""Does the task store open, is it sound and private, and do its running tasks run?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trueup.errors import StoreError
from trueup.store.file import VERSION, tasks_db_path
from trueup.store.look import Look, look
from trueup.verbs.doctor.model import Finding, fail, failed, ok, warn
from trueup.verbs.doctor.request import DoctorRequest

CHECK = "tasks"
WHERE = "task store"
_SHOWN = 5


def check(request: DoctorRequest) -> Iterator[Finding]:
    """A look that changes nothing."""
    path = tasks_db_path(request.task_db, request.config.tasks.task_db)
    if not path.exists():
        yield ok(CHECK, WHERE, f"{path} is not there yet: the first run makes it")
        return
    if not path.is_file():
        yield fail(CHECK, WHERE, f"{path} is not a file", "set TRUEUP_TASKS_DB to another file")
        return
    try:
        found = look(path)
    except StoreError as error:
        yield failed(CHECK, WHERE, error)
        return
    yield _sound(path, found)
    yield from _private(path)
    if found.lost:
        listed = ", ".join(f"{task_id[:8]} ({why})" for task_id, why in found.lost[:_SHOWN])
        more = f" and {len(found.lost) - _SHOWN} more" if len(found.lost) > _SHOWN else ""
        cure = "run `trueup tasks`: it writes them down as FAILED"
        yield warn(CHECK, WHERE, f"RUNNING, but nobody works on them: {listed}{more}", cure)


def _sound(path: Path, found: Look) -> Finding:
    if found.damage:
        cure = "move it and its -wal and -shm files away to start a new one"
        return fail(CHECK, WHERE, f"{path} is damaged: {found.damage}", cure)
    version = f"version {found.version}" + (f" (the next run makes it {VERSION})" if found.version < VERSION else "")
    alive = found.running - len(found.lost)
    return ok(CHECK, WHERE, f"{path} is sound: {found.tasks:,} tasks, {alive:,} of them running, {version}")


def _private(path: Path) -> Iterator[Finding]:
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        yield warn(CHECK, WHERE, f"others may read or write {path} (mode {mode:03o})", f"chmod 600 {path}")
