"""A run on disk: its number, what it works on and which of its outputs are whole, so that a killed one can go on.

An output is written beside its place and renamed when it is whole; then the manifest names it. What the manifest does
not name was not finished, and is written again.
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

from trueup.errors import StoreError


class Run:
    """One run: the facts it began with, and its outputs."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder = folder
        self.facts = facts

    @property
    def number(self) -> int:
        """Runs count from one."""
        return int(self.facts["run"])

    @property
    def is_finished(self) -> bool:
        """Whether all of it is done."""
        return bool(self.facts.get("finished"))

    def has(self, output: str) -> bool:
        """Whether an output is whole."""
        return output in self.facts["outputs"]

    def note(self, **facts: Any) -> None:
        """Remember facts, surely on disk when this returns."""
        self.facts.update(facts)
        _write_json(self.folder / "manifest.json", self.facts)

    def done(self, output: str, **facts: Any) -> None:
        """Remember that an output is whole."""
        self.facts["outputs"][output] = facts
        self.note()

    @contextmanager
    def output(self, name: str) -> Iterator[Path]:
        """A folder to write an output into; it gets its name when the block ends well."""
        place = self.folder / name
        part = place.with_name(place.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        yield part
        os.rename(part, place)

    def path(self, name: str) -> Path:
        """Where an output is."""
        return self.folder / name


class Runs:
    """All runs of a work folder."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.folder = work / "runs"

    def all(self) -> list[Run]:
        """In the order of their numbers."""
        found = []
        for path in sorted(self.folder.glob("*/manifest.json")):
            try:
                found.append(Run(path.parent, json.loads(path.read_text(encoding="utf-8"))))
            except (OSError, ValueError) as error:
                raise StoreError(
                    f"cannot read {path}: {error}", cure="restore it, or move the run's folder away"
                ) from None
        return found

    def unfinished(self) -> Run | None:
        """The run that was begun and not finished, if any: it must be finished before the next."""
        return next((run for run in self.all() if not run.is_finished), None)

    def taken_chunks(self) -> set[str]:
        """The chunk sets that a run has taken."""
        return {name for run in self.all() for name in run.facts["chunks"]}

    def late_runs(self) -> list[int]:
        """The finished runs with late rows that no run has joined since."""
        joined = {number for run in self.all() for number in run.facts.get("late_from", ())}
        return [
            run.number
            for run in self.all()
            if run.is_finished
            and run.number not in joined
            and any("older" in facts.get("late_reasons", {}) for facts in run.facts["outputs"].values())
        ]

    def begin(self, facts: Mapping[str, Any]) -> Run:
        """A new run; it is there from the moment its manifest is."""
        number = max((run.number for run in self.all()), default=0) + 1
        run = Run(self.folder / f"{number:06d}", {"run": number, "outputs": {}, **facts})
        run.folder.mkdir(parents=True, exist_ok=True)
        run.note()
        return run


@contextmanager
def only_one(work: Path) -> Iterator[None]:
    """One run at a time in a work folder; the lock goes with the process, however it ends."""
    work.mkdir(parents=True, exist_ok=True)
    with open(work / ".lock", "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreError(f"another run is at work in {work}", cure="wait for it to end, then run again") from None
        yield


def _write_json(path: Path, facts: Mapping[str, Any]) -> None:
    part = path.with_name(path.name + ".part")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(facts, file, indent=1, default=str)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}", cure="make room there") from None
