"""Differences on disk while a run goes on: a run may find more than fits into memory."""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import IO

from trueup.errors import StoreError
from trueup.report.json_file import cure_for
from trueup.rows.align import Difference, pack, unpack

# Where a difference stands: where its portion begins in the file, and its number in it.
Place = tuple[int, int]

_LENGTH = struct.Struct(">Q")
# The last portions read are kept: several answers may speak of one.
_KEPT = 3


class Spool:
    """A file of differences, read back in order or by place; gone when closed, never readable by others."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            # Unlinked from the start: nothing is left behind, whatever happens to this process.
            self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder, prefix=".trueup-", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise _cannot_write(folder, error) from None
        self._end = 0
        self._kept: dict[int, tuple[list[Difference], int]] = {}
        self.count = 0

    def add(self, differences: Sequence[Difference], packed: bytes | None = None) -> None:
        """Append a portion; `packed`: the same, as `pack` gives it, where the caller has it already."""
        if differences:
            data = pack(differences) if packed is None else packed
            self._write(_LENGTH.pack(len(data)) + data)
            self.count += len(differences)

    def __iter__(self) -> Iterator[Difference]:
        return (difference for _, difference in self.with_places())

    def with_places(self) -> Iterator[tuple[Place, Difference]]:
        """All of them, each with its place in the file; several readers may be at work at once."""
        start, seen = 0, 0
        while seen < self.count:
            portion, following = self._portion(start)
            yield from (((start, number), difference) for number, difference in enumerate(portion))
            start, seen = following, seen + len(portion)

    def at(self, places: Iterable[Place]) -> Iterator[tuple[Place, Difference]]:
        """Those at places; neighbours are read together."""
        for start, some in groupby(places, key=lambda place: place[0]):
            portion, _ = self._portion(start)
            yield from ((place, portion[place[1]]) for place in some)

    def _portion(self, start: int) -> tuple[list[Difference], int]:
        """The portion that begins here, and where the next one does."""
        if start not in self._kept:
            (length,) = _LENGTH.unpack(self._read(start, _LENGTH.size))
            portion = unpack(self._read(start + _LENGTH.size, length))
            while len(self._kept) >= _KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[start] = portion, start + _LENGTH.size + length
        return self._kept[start]

    def _read(self, start: int, length: int) -> bytes:
        parts = []
        while length:
            part = os.pread(self._file.fileno(), length, start)
            if not part:
                raise StoreError(f"a file of trueup in {self._folder} was cut off", cure="run again")
            parts.append(part)
            start, length = start + len(part), length - len(part)
        return b"".join(parts)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                written = os.pwrite(self._file.fileno(), rest, self._end)
                self._end += written
                rest = rest[written:]
        except OSError as error:
            raise _cannot_write(self._folder, error) from None

    def close(self) -> None:
        """Let go of the disk space."""
        try:
            self._file.close()
        except OSError:
            # A full disk was reported where it mattered.
            return


def _cannot_write(folder: Path, error: OSError) -> StoreError:
    return StoreError(f"cannot write to {folder}: {error.strerror}", cure=cure_for(error))
