"""A run on disk: its inputs and its complete outputs, so that a killed run can be continued.

An output is written to a temporary folder, renamed when it is complete, and then listed in the manifest. An output that
the manifest does not list is written again.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trueup.config.files import make_folder, open_private, rename_folder, write_whole
from trueup.errors import StoreError
from trueup.store import times
from trueup.verbs.difflog.model import OLDER, REJOINED

MANIFEST = "manifest.json"


class Run:
    """One run: the facts it started with, and its outputs."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder = folder
        self.facts = facts

    @property
    def number(self) -> int:
        """The number of the run; the first is 1."""
        return int(self.facts["run"])

    @property
    def is_finished(self) -> bool:
        """Whether all outputs are complete."""
        return bool(self.facts.get("finished"))

    @property
    def is_recorded(self) -> bool:
        """Whether the run has started."""
        return (self.folder / "manifest.json").exists()

    def begin(self) -> None:
        """Record that the run has started: from now on it must be finished or given up."""
        make_folder(self.folder)
        self.note()

    def has(self, output: str) -> bool:
        """Return whether an output is complete."""
        return output in self.facts["outputs"]

    def late_sources(self, *reasons: str) -> list[str]:
        """Return the sources with late rows that a later run can join; only those with these reasons."""
        wanted = set(reasons or REJOINED)
        late = [name for name, facts in self.facts["outputs"].items() if wanted & set(facts.get("late_reasons", ()))]
        # The names of steps are diff_log_NUMBER_SOURCE.
        return [name.split("_", 3)[3] for name in late]

    def note(self, **facts: Any) -> None:
        """Record facts; they are synced to disk before this returns."""
        self.facts.update(facts)
        _write_json(self.folder / MANIFEST, self.facts)

    def done(self, output: str, **facts: Any) -> None:
        """Record that an output is complete."""
        self.facts["outputs"][output] = facts
        self.note()

    @contextmanager
    def output(self, name: str) -> Iterator[Path]:
        """Yield a folder for an output; it is renamed to `name` when the block ends without an error."""
        place = self.folder / name
        part = place.with_name(place.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(place, ignore_errors=True)
        make_folder(place.parent)
        yield part
        rename_folder(part, place)

    def path(self, name: str) -> Path:
        """Return the folder of an output."""
        return self.folder / name

    def give_up(self) -> None:
        """Remove the run and its outputs: its chunk sets wait again. A kill leaves the run, or no run."""
        trash = self.folder.parent.parent / f".abandoned-{self.folder.name}"
        shutil.rmtree(trash, ignore_errors=True)
        rename_folder(self.folder, trash)
        shutil.rmtree(trash, ignore_errors=True)


class Runs:
    """All runs of a work folder."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.folder = work / "runs"

    def all(self) -> list[Run]:
        """Return the runs in the order of their numbers. Raises StoreError if a manifest cannot be read."""
        runs = []
        for path in sorted(self.folder.glob(f"*/{MANIFEST}")):
            try:
                runs.append(Run(path.parent, json.loads(path.read_text(encoding="utf-8"))))
            except (OSError, ValueError) as error:
                raise StoreError(
                    f"cannot read {path}: {error}", cure="restore the file, or move the folder of the run away"
                ) from None
        return runs

    def unfinished(self) -> Run | None:
        """Return the run that was started but not finished, or None. It must be finished before the next run."""
        return next((run for run in self.all() if not run.is_finished), None)

    def taken_chunks(self) -> set[str]:
        """Return the chunk sets that runs have processed or started to process."""
        return {name for run in self.all() for name in run.facts["chunks"]}

    def joined_chunks(self) -> set[str]:
        """Return those of the taken chunk sets that a join has written."""
        return {name for run in self.all() for name in run.facts.get("joined", ())}

    def committed_chunks(self) -> set[str]:
        """Return the chunk sets whose rows are in the state table."""
        return {name for run in self.all() if run.has("state") for name in run.facts["chunks"]}

    def late_runs(self, *, more: bool = True) -> list[int]:
        """Return the finished runs with late rows that no later run joined. Raises StoreError if they are missing.

        Without `more` rows, rows that only wait for their visit are joined if there are rows of later runs.
        """
        runs = self.all()
        joined = {number for run in runs for number in run.facts.get("late_from", ())}
        last = max((run.number for run in runs), default=0)
        late = [
            run
            for run in runs
            if run.is_finished and run.number not in joined and run.late_sources()
            if more or run.number < last or run.late_sources(OLDER)
        ]
        for folder in (run.path("late") / source for run in late for source in run.late_sources()):
            if not any(folder.glob("*.parquet")):
                raise StoreError(
                    f"{folder} is missing, and contains late rows that no run has joined", cure="restore the folder"
                )
        return [run.number for run in late]

    def path(self, number: int) -> Path:
        """Return the folder of a run."""
        return self.folder / f"{number:06d}"

    def new(self, number: int, facts: Mapping[str, Any]) -> Run:
        """Return a new run; nothing is written before `Run.begin`. `number` follows the last run in the state table."""
        return Run(self.path(number), {"run": number, "outputs": {}, **facts})

    def files(self) -> dict[int, dict[str, dict[str, int]]]:
        """Return the files of the chunk sets that each run has processed."""
        return {run.number: run.facts.get("files", {}) for run in self.all()}


@contextmanager
def lock_work_folder(work: Path) -> Iterator[None]:
    """Lock the work folder for this process. Raises StoreError if another run holds the lock.

    The system releases the lock when the process ends, however it ends.
    """
    make_folder(work)
    with open(open_private(work / ".lock", os.O_WRONLY), "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreError(f"another run is active in {work}", cure="wait until it ends, then run again") from None
        yield


def now() -> str:
    """Return the current time, to the second."""
    return times.now()[:19] + "Z"


def _write_json(path: Path, facts: Mapping[str, Any]) -> None:
    try:
        write_whole(path, json.dumps(facts, indent=1, default=str).encode())
    except OSError as error:
        raise StoreError(
            f"cannot write {path}: {error.strerror}", cure="free disk space, or fix the permissions of the folder"
        ) from None
