"""What a run has finished, on disk as it goes: a run that was stopped or killed is taken up from here.

The file only grows. A record is there whole or not at all (its length and checksum stand before it), so whatever a
killed process left at the end is passed over. A block counts as finished when its own record says so, which is written
after everything that was found in it.
"""

from __future__ import annotations

import os
import pickle
import struct
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from trueup.db.snapshot import Position
from trueup.errors import StoreError
from trueup.rows.align import Pair, pack, unpack
from trueup.rows.spec import TableSpec
from trueup.task.compare.model import Found, Hashed, Ranges

_MAKE_ROOM = "free space there, or set TRUEUP_TASKS_DB to a file on another disk"
_HEAD = struct.Struct(">II")
_SURE_SECONDS = 1.0
# What is left of a run that nobody took up for so long is removed: it may hold rows.
_KEPT_SECONDS = 14 * 24 * 3600


@dataclass(frozen=True)
class Plan:
    """What a run was going to do; who takes it up does the same."""

    spec: TableSpec
    ranges: Ranges


@dataclass(frozen=True)
class Positions:
    """What the nodes' snapshots saw when the run was begun or taken up."""

    positions: tuple[Position, ...]


@dataclass(frozen=True)
class Done:
    """A block of the plan is finished, by its number."""

    origin: int


@dataclass(frozen=True)
class _Found:
    """Found, with its differences packed."""

    packed: bytes
    in_flight: Counter[Pair]
    origin: int


@dataclass(frozen=True)
class Before:
    """What an earlier try has left: its plan, the snapshots it saw, and what it found in which finished blocks."""

    plan: Plan
    positions: tuple[tuple[Position, ...], ...]
    done: frozenset[int]
    path: Path

    def answers(self) -> Iterator[Hashed | Found]:
        """Everything that was found in the finished blocks, in the order it was found."""
        for record in _records(self.path):
            if isinstance(record, Hashed) and record.origin in self.done:
                yield record
            elif isinstance(record, _Found) and record.origin in self.done:
                yield Found(tuple(unpack(record.packed)), record.in_flight, record.origin)


class Journal:
    """The file of one run, opened for writing: first the plan and what an earlier try finished, then what is found."""

    def __init__(self, path: Path, plan: Plan, before: Before | None, positions: Sequence[Position]) -> None:
        self._path = path
        # Beside the old one, which is read while this is written, and there whole or not at all.
        part = path.with_name(path.name + ".part")
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
            self._file: IO[bytes] = open(os.open(part, flags, 0o600), "wb")  # noqa: SIM115
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}", cure=_MAKE_ROOM) from None
        self._write(plan)
        for earlier in before.positions if before else ():
            self._write(Positions(earlier))
        for answer in before.answers() if before else ():
            self.add(answer)
        for origin in sorted(before.done) if before else ():
            self._write(Done(origin))
        self._write(Positions(tuple(positions)))
        self._make_sure()
        os.replace(part, path)

    def add(self, answer: Hashed | Found, packed: bytes | None = None) -> None:
        """Something was found in a block; `packed`: its differences, where they are packed already."""
        if answer.origin < 0:
            return
        if isinstance(answer, Hashed):
            self._write(answer)
        else:
            data = pack(answer.differences) if packed is None else packed
            self._write(_Found(data, answer.in_flight, answer.origin))

    def done(self, origin: int) -> None:
        """A block of the plan is finished."""
        if origin < 0:
            return
        self._write(Done(origin))
        if time.monotonic() - self._sure_at >= _SURE_SECONDS:
            self._make_sure()

    def close(self) -> None:
        """Let go of the file; it stays for whoever takes the run up."""
        try:
            self._file.close()
        except OSError:
            # A full disk was reported where it mattered.
            return

    def _write(self, record: object) -> None:
        data = pickle.dumps(record, pickle.HIGHEST_PROTOCOL)
        try:
            self._file.write(_HEAD.pack(len(data), zlib.crc32(data)) + data)
            self._file.flush()
        except OSError as error:
            raise StoreError(f"cannot write {self._path}: {error.strerror}", cure=_MAKE_ROOM) from None

    def _make_sure(self) -> None:
        os.fsync(self._file.fileno())
        self._sure_at = time.monotonic()


def journal_path(folder: Path, task_id: str) -> Path:
    """Where the journal of a task is."""
    return folder / f"{task_id}.journal"


def read_journal(path: Path) -> Before | None:
    """What an earlier try has left; None if it did not come far enough to leave anything."""
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


def tidy(folder: Path) -> None:
    """Remove what runs have left that nobody took up for long."""
    for path in folder.glob("*.journal*"):
        try:
            if time.time() - path.stat().st_mtime > _KEPT_SECONDS:
                path.unlink()
        except OSError:
            continue


def _records(path: Path) -> Iterator[Any]:
    """Every whole record; a file that others could have written is not read, for it says what is to be run."""
    try:
        found = path.stat()
    except OSError:
        return
    if found.st_mode & 0o022 or (hasattr(os, "getuid") and found.st_uid not in (os.getuid(), 0)):
        raise StoreError(f"{path} can be written by others", cure="start the diff anew, without --resume")
    with open(path, "rb") as file:
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            length, check = _HEAD.unpack(head)
            data = file.read(length)
            if len(data) < length or zlib.crc32(data) != check:
                return
            yield pickle.loads(data)
