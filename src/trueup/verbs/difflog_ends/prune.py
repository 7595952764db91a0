"""Removes what later runs do not need: outputs and chunk sets of old runs, and unused files of the state table.

The manifest of a run and the list of joined files of a chunk set stay: they say what is processed. Late rows that a
later run can join stay as well.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trueup.verbs.difflog import chunks
from trueup.verbs.difflog.manifest import MANIFEST, Run, Runs, lock_work_folder, now
from trueup.verbs.difflog.model import DiffLogConfig
from trueup.verbs.difflog.record import check_log
from trueup.verbs.difflog.state import StateTable
from trueup.verbs.difflog.vacuum import vacuum


@dataclass(frozen=True)
class Pruned:
    """What a prune removes: runs and chunk sets whose data is removed, and the size of it."""

    executed: bool = False
    runs: tuple[int, ...] = ()
    chunks: tuple[str, ...] = ()
    # Old runs whose late rows stay, because a later run can join them.
    late: tuple[int, ...] = ()
    bytes: int = 0
    state_bytes: int = 0


def prune(difflog: DiffLogConfig, *, keep: int, execute: bool) -> Pruned:
    """Return what can be removed when the last `keep` runs and their chunk sets stay; with `execute`, remove it.

    Raises StoreError if a part of the log is missing, and CheckFailed if its settings were changed.
    """
    work = Path(difflog.work)
    with lock_work_folder(work):
        check_log(difflog)
        runs = Runs(work)
        every = runs.all()
        late = runs.late_runs()
        old = [run for run in every[: max(0, len(every) - keep)] if run.is_finished]
        names = list(dict.fromkeys(name for run in old for name in run.facts["chunks"]))
        # A proof reads the late rows that a kept run has joined.
        joined = {number for run in every if run not in old for number in run.facts["late_from"]}
        by_run = {run: list(_outputs(run, keep_late=run.number in {*late, *joined})) for run in old}
        by_set = {name: list(_chunks(difflog, work, name)) for name in names}
        result = Pruned(
            execute,
            tuple(run.number for run, paths in by_run.items() if paths),
            tuple(name for name, paths in by_set.items() if paths),
            tuple(run.number for run in old if run.number in late),
            sum(_size(path) for paths in (*by_run.values(), *by_set.values()) for path in paths),
            0 if runs.unfinished() else vacuum(StateTable.of(difflog), execute=execute),
        )
        if execute:
            _remove(by_run, by_set)
        return result


def _outputs(run: Run, *, keep_late: bool) -> Iterator[Path]:
    """Yield the outputs of a run."""
    kept = {MANIFEST, "late"} if keep_late else {MANIFEST}
    yield from (path for path in run.folder.iterdir() if path.name not in kept)


def _chunks(difflog: DiffLogConfig, work: Path, name: str) -> Iterator[Path]:
    """Yield the rows of a processed chunk set; rows that still wait for their visit are in the last joined set."""
    folder = chunks.chunk_folder(work) / name
    for source in (*chunks.sources(difflog), "refused"):
        if (folder / source).is_dir():
            yield folder / source


def _remove(by_run: dict[Run, list[Path]], by_set: dict[str, list[Path]]) -> None:
    for run, paths in by_run.items():
        if paths:
            # Before: an output that is removed by half must not seem to be complete.
            run.note(pruned=now())
    for path in (path for paths in (*by_run.values(), *by_set.values()) for path in paths):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
