"""The journal of a run: what it has finished, on disk, so that it can be resumed after it was stopped or killed.

Records are only appended, each with its length and checksum, so an incomplete record at the end of the file is
ignored. A block is finished when its `Done` record exists, which is written after all that was found in the block.
"""

from __future__ import annotations

import io
import os
import pickle
import struct
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trueup.config.files import PartFile
from trueup.config.trust import why_not_trusted
from trueup.db.snapshot import Position
from trueup.errors import StoreError
from trueup.report.model import DiffResult
from trueup.rows.align import Pair, pack, unpack
from trueup.rows.keys import Block
from trueup.rows.spec import ColumnSpec, KeySpec, TableSpec
from trueup.store import TaskStore
from trueup.task.compare.model import Found, Hashed, Ranges
from trueup.task.open import OpenTask

_MAKE_ROOM = "free space there, or set TRUEUP_TASKS_DB to a file on another disk"
_HEAD = struct.Struct(">II")
_SYNC_SECONDS = 1.0
# A journal contains rows of the table; it is deleted after this time.
_KEPT_SECONDS = 14 * 24 * 3600


@dataclass(frozen=True)
class Plan:
    """The table and the blocks of a run; a resumed run uses the same."""

    spec: TableSpec
    ranges: Ranges


@dataclass(frozen=True)
class Positions:
    """The snapshots with which the run was started or resumed."""

    positions: tuple[Position, ...]


@dataclass(frozen=True)
class Done:
    """The block of the plan with this number is finished."""

    origin: int


@dataclass(frozen=True)
class _Found:
    """A `Found` answer with packed differences."""

    packed: bytes
    in_flight: Counter[Pair]
    origin: int


@dataclass(frozen=True)
class Before:
    """The journal of an earlier attempt: its plan, its snapshots, its finished blocks and their answers."""

    plan: Plan
    positions: tuple[tuple[Position, ...], ...]
    done: frozenset[int]
    path: Path

    def answers(self) -> Iterator[Hashed | Found]:
        """Yield the answers of the finished blocks, in their order."""
        for record in _records(self.path):
            if isinstance(record, Hashed) and record.origin in self.done:
                yield record
            elif isinstance(record, _Found) and record.origin in self.done:
                yield Found(tuple(unpack(record.packed)), record.in_flight, record.origin)


class Journal:
    """The journal of a run, open for writing; it starts with the plan and with what an earlier attempt finished."""

    def __init__(self, path: Path, plan: Plan, before: Before | None, positions: Sequence[Position]) -> None:
        self._path = path
        # Written to another file, because the old journal is read meanwhile, and renamed when it is complete.
        try:
            part = PartFile(path)
            self._file = part.file
        except OSError as error:
            raise StoreError(f"cannot write the journal {path}: {error.strerror}", cure=_MAKE_ROOM) from None
        self._write(plan)
        for earlier in before.positions if before else ():
            self._write(Positions(earlier))
        for answer in before.answers() if before else ():
            self.add(answer)
        for origin in sorted(before.done) if before else ():
            self._write(Done(origin))
        self._write(Positions(tuple(positions)))
        part.keep()
        self._synced_at = time.monotonic()

    def add(self, answer: Hashed | Found, packed: bytes | None = None) -> None:
        """Record an answer; `packed` is its packed differences, if they are already packed."""
        if answer.origin < 0:
            return
        if isinstance(answer, Hashed):
            self._write(answer)
        else:
            data = pack(answer.differences) if packed is None else packed
            self._write(_Found(data, answer.in_flight, answer.origin))

    def done(self, origin: int) -> None:
        """Record that a block of the plan is finished."""
        if origin < 0:
            return
        self._write(Done(origin))
        if time.monotonic() - self._synced_at >= _SYNC_SECONDS:
            self._sync()

    def close(self) -> None:
        """Close the file; it is kept for a resumed run."""
        try:
            self._file.close()
        except OSError:
            # A full disk was already reported by a write.
            return

    def _write(self, record: object) -> None:
        data = pickle.dumps(record, pickle.HIGHEST_PROTOCOL)
        try:
            self._file.write(_HEAD.pack(len(data), zlib.crc32(data)) + data)
            self._file.flush()
        except OSError as error:
            raise StoreError(f"cannot write the journal {self._path}: {error.strerror}", cure=_MAKE_ROOM) from None

    def _sync(self) -> None:
        os.fsync(self._file.fileno())
        self._synced_at = time.monotonic()


def journal_path(store: TaskStore, task_id: str) -> Path:
    """Return the path of the journal of a task."""
    return store.folder() / f"{task_id}.journal"


@contextmanager
def open_journal(
    task: OpenTask, spec: TableSpec, ranges: Ranges, before: Before | None, positions: Sequence[Position]
) -> Iterator[Journal | None]:
    """Open the journal of a task, or None if the run could not be resumed from it.

    Digests of a table without a key are valid only in one snapshot, and of some tables nothing says whether they are
    still the same.
    """
    if spec.is_keyless or not all(position.files for position in positions):
        yield None
        return
    journal = Journal(journal_path(task.store, task.task_id), Plan(spec, ranges), before, positions)
    try:
        yield journal
    finally:
        journal.close()


def remove_journal(store: TaskStore, result: DiffResult) -> None:
    """Delete the journal of a run that is complete."""
    if result.verdict != "INCOMPLETE":
        journal_path(store, result.task_id).unlink(missing_ok=True)


def read_journal(store: TaskStore, task_id: str) -> Before | None:
    """Return the journal of an earlier attempt; None if it ended before it had a plan."""
    path = journal_path(store, task_id)
    plan: Plan | None = None
    positions, done = [], set()
    for record in _records(path):
        if isinstance(record, Plan):
            plan = record
        elif isinstance(record, Positions):
            positions.append(record.positions)
        elif isinstance(record, Done):
            done.add(record.origin)
    return Before(plan, tuple(positions), frozenset(done), path) if plan is not None else None


def remove_old_journals(store: TaskStore) -> None:
    """Delete journals of runs that were not resumed for a long time."""
    for path in store.folder().glob("*.journal*"):
        try:
            if time.time() - path.stat().st_mtime > _KEPT_SECONDS:
                path.unlink()
        except OSError:
            continue


def _records(path: Path) -> Iterator[Any]:
    """Yield all complete records. They are pickles: raise if other users can write the file."""
    if not path.exists():
        return
    if reason := why_not_trusted(path):
        raise StoreError(f"the journal {path} is not read: {reason}", cure="start a new run, without --resume")
    with open(path, "rb") as file:
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            length, check = _HEAD.unpack(head)
            data = file.read(length)
            if len(data) < length or zlib.crc32(data) != check:
                return
            try:
                yield _Unpickler(io.BytesIO(data)).load()
            except (pickle.UnpicklingError, TypeError, AttributeError) as error:
                text = f"cannot read the journal {path}, which another version of trueup wrote ({error})"
                raise StoreError(text, cure="start a new run, without --resume") from None


# By name only: an older version may have had them in other modules. Nothing else is loaded.
_CLASSES = {
    kind.__name__: kind
    for kind in (
        Plan,
        Positions,
        Done,
        _Found,
        Hashed,
        Ranges,
        Block,
        Position,
        TableSpec,
        ColumnSpec,
        KeySpec,
        Counter,
    )
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name not in _CLASSES:
            raise pickle.UnpicklingError(f"unknown class {module}.{name}")
        return _CLASSES[name]
