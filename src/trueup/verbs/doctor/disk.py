"""Checks of the folders that a run writes to: permissions and free space."""

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
from trueup.verbs.doctor.model import DoctorRequest, Finding, fail, ok, warn

CHECK = "disk"
LOW_SPACE = 1024**3
NO_SPACE = 32 * 1024**2


def check(request: DoctorRequest) -> Iterator[Finding]:
    """Yield one finding per folder."""
    for folder, uses in _folders(request).items():
        use = " and ".join(uses)
        yield from guarded(CHECK, use, lambda folder=folder, use=use: [check_folder(folder, use)])  # type: ignore[misc]


def _folders(request: DoctorRequest) -> dict[Path, list[str]]:
    """Return the folders and their uses."""
    reports = Path(request.settings.report_dir or ".").absolute()
    store = tasks_db_path(request.task_db, request.config.tasks.task_db).parent
    uses: list[tuple[Path, str]] = [(reports, "reports"), (reports, "spool"), (_existing(store), "task store")]
    if request.spark.engine != "local" and not request.spark.remote:
        configured = (
            os.environ.get("SPARK_LOCAL_DIRS") or request.spark.conf.get("spark.local.dir") or tempfile.gettempdir()
        )
        uses += [
            (Path(text.strip()).absolute(), "Spark")
            for text in (configured or tempfile.gettempdir()).split(",")
            if text.strip()
        ]
    folders: dict[Path, list[str]] = {}
    for folder, use in uses:
        folders.setdefault(folder, []).append(use)
    return folders


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest existing parent."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def check_folder(folder: Path, use: str) -> Finding:
    """Write a temporary file to the folder, and check its free space."""
    try:
        # Unlinked from the start, like the spool. Only a write shows missing permissions, quotas and a full disk.
        with tempfile.TemporaryFile(dir=folder, prefix=".trueup-doctor-") as file:
            file.write(b"\0" * 4096)
            file.flush()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return fail(CHECK, use, f"cannot write to {folder}: {error.strerror}", cure_for(error))
    space = f"{_size(free)} free in {folder}"
    if free < NO_SPACE:
        return fail(CHECK, use, space, "free disk space, or use another folder")
    if free < LOW_SPACE:
        return warn(CHECK, use, f"only {space}", "free disk space, or use another folder")
    if _is_world_writable(folder):
        cure = f"chmod o-w {folder}, or use another folder"
        return warn(CHECK, use, f"{space}, but all users can replace files there", cure)
    return ok(CHECK, use, space)


def _is_world_writable(folder: Path) -> bool:
    """Return whether other users can delete and rename files: writable by all, without the sticky bit."""
    mode = folder.stat().st_mode
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX


def _size(count: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"
