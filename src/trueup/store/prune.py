"""Delete old tasks together with their reports."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trueup.store.tasks import Task, TaskStore

# The files that belong to a JSON report: the page and the table of differences.
_BESIDE = (".html", ".parquet")
# A report names its task in its first lines.
_HEAD_BYTES = 1 << 20


@dataclass(frozen=True)
class Pruned:
    """What was deleted."""

    tasks: int
    files: int
    runs: int = 0


def prune(store: TaskStore, before: str, *, with_history: bool = False, dry_run: bool = False) -> Pruned:
    """Delete the tasks that ended before a time, and their reports; the history of tables only `with_history`.

    Undo files stay. A file is deleted only if it names the task that wrote it. With `dry_run`, nothing is deleted.
    """
    tasks = store.ended_before(before)
    files = [path for task in tasks for path in _files(task)]
    if dry_run:
        return Pruned(len(tasks), len(files))
    deleted = 0
    for path in files:
        with suppress(OSError):
            path.unlink()
            deleted += 1
    for folder in {path.parent for path in files if path.parent.name.startswith("tables_")}:
        # The folder of a run over many tables, if no other file is in it.
        with suppress(OSError):
            folder.rmdir()
    store.delete(tasks)
    return Pruned(len(tasks), deleted, store.forget(before) if with_history else 0)


def _files(task: Task) -> list[Path]:
    report = Path(task.diff_file_path)
    if not task.diff_file_path or report.suffix != ".json" or report.is_symlink() or not report.is_file():
        return []
    try:
        with open(report, "rb") as file:
            is_own = task.task_id.encode() in file.read(_HEAD_BYTES)
    except OSError:
        return []
    if not is_own:
        return []
    names = [report.with_suffix(suffix) for suffix in _BESIDE]
    # The page of many tables has another name than their summary.
    names += [report.with_name("index.html")] if report.name == "summary.json" else []
    return [report, *(path for path in names if path.is_file() and not path.is_symlink())]
