"""Is there room, and may we write, in every folder that a run writes to?"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from trueup.report.json_file import cure_for
from trueup.store.file import tasks_db_path
from trueup.verbs.doctor.guarded import guarded
from trueup.verbs.doctor.model import Finding, fail, ok, warn
from trueup.verbs.doctor.request import DoctorRequest

CHECK = "disk"
LITTLE = 1024**3
NOTHING = 32 * 1024**2


def check(request: DoctorRequest) -> Iterator[Finding]:
    """A line for each folder, with what it is for."""
    for folder, uses in _folders(request).items():
        what = " and ".join(uses)
        yield from guarded(CHECK, what, lambda folder=folder, what=what: [_check_folder(folder, what)])  # type: ignore[misc]


def _folders(request: DoctorRequest) -> dict[Path, list[str]]:
    """Folder -> what is written there; several things may share one."""
    reports = Path(request.settings.report_dir or ".").absolute()
    store = tasks_db_path(request.task_db, request.config.tasks.task_db).parent
    uses: list[tuple[Path, str]] = [(reports, "reports"), (reports, "spool"), (_existing(store), "task store")]
    if request.spark.engine != "local" and not request.spark.remote:
        given = os.environ.get("SPARK_LOCAL_DIRS") or request.spark.conf.get("spark.local.dir") or tempfile.gettempdir()
        uses += [(Path(each.strip()).absolute(), "Spark") for each in given.split(",") if each.strip()]
    folders: dict[Path, list[str]] = {}
    for folder, use in uses:
        folders.setdefault(folder, []).append(use)
    return folders


def _existing(folder: Path) -> Path:
    """The folder, or the one in which it will be made."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _check_folder(folder: Path, what: str) -> Finding:
    try:
        # Unlinked from the start, as the spool is: rights, quotas and a full disk show only when one tries.
        with tempfile.TemporaryFile(dir=folder, prefix=".trueup-doctor-") as file:
            file.write(b"\0" * 4096)
            file.flush()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return fail(CHECK, what, f"cannot write to {folder}: {error.strerror}", cure_for(error))
    room = f"{_size(free)} free in {folder}"
    if free < NOTHING:
        return fail(CHECK, what, room, "make room there, or choose another place")
    if free < LITTLE:
        return warn(CHECK, what, f"only {room}", "make room there, or choose another place")
    if _is_open_to_all(folder):
        cure = f"chmod o-w {folder}, or choose another place"
        return warn(CHECK, what, f"{room}, but everybody may replace files there", cure)
    return ok(CHECK, what, room)


def _is_open_to_all(folder: Path) -> bool:
    """Whether others may delete and rename our files: writable by all, and without the sticky bit of /tmp."""
    mode = folder.stat().st_mode
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX


def _size(count: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"
