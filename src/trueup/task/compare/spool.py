"""Differences of a run in a temporary file: there may be more than fit into memory."""

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

# Where a difference is: the offset of its batch in the file, and its number in the batch.
Place = tuple[int, int]

_LENGTH = struct.Struct(">Q")
# Batches kept in memory after they were read: several answers may refer to one.
_KEPT = 3


class Spool:
    """A file of differences, read back in order or by place. It has no name, and is deleted when it is closed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = unnamed_file(folder, buffering=0)
        self._end = 0
        self._kept: dict[int, tuple[list[Difference], int]] = {}
        self.count = 0

    def add(self, differences: Sequence[Difference], packed: bytes | None = None) -> None:
        """Append a batch; `packed` is the result of `pack` for it, if the caller has it already."""
        if differences:
            data = pack(differences) if packed is None else packed
            self._write(_LENGTH.pack(len(data)) + data)
            self.count += len(differences)

    def __iter__(self) -> Iterator[Difference]:
        return (difference for _, difference in self.with_places())

    def with_places(self) -> Iterator[tuple[Place, Difference]]:
        """Yield all differences with their places; several iterators may be used at once."""
        start, seen = 0, 0
        while seen < self.count:
            batch, following = self._batch(start)
            yield from (((start, number), difference) for number, difference in enumerate(batch))
            start, seen = following, seen + len(batch)

    def at(self, places: Iterable[Place]) -> Iterator[tuple[Place, Difference]]:
        """Yield the differences at these places."""
        for start, same_batch in groupby(places, key=lambda place: place[0]):
            batch, _ = self._batch(start)
            yield from ((place, batch[place[1]]) for place in same_batch)

    def _batch(self, start: int) -> tuple[list[Difference], int]:
        """Return the batch at this offset, and the offset of the next one."""
        if start not in self._kept:
            (length,) = _LENGTH.unpack(self._read(start, _LENGTH.size))
            batch = unpack(self._read(start + _LENGTH.size, length))
            while len(self._kept) >= _KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[start] = batch, start + _LENGTH.size + length
        return self._kept[start]

    def _read(self, start: int, length: int) -> bytes:
        parts = []
        while length:
            part = os.pread(self._file.fileno(), length, start)
            if not part:
                raise StoreError(
                    f"the temporary file of differences in {self._folder} was truncated", cure="run the command again"
                )
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
        """Delete the file."""
        try:
            self._file.close()
        except OSError:
            # A full disk was already reported by a write.
            return


def unnamed_file(folder: Path, *, buffering: int = -1) -> IO[bytes]:
    """Return a temporary file without a name: it is deleted even if this process is killed."""
    try:
        return tempfile.TemporaryFile(dir=folder, prefix=".trueup-", buffering=buffering)
    except OSError as error:
        raise _cannot_write(folder, error) from None


def _cannot_write(folder: Path, error: OSError) -> StoreError:
    return StoreError(f"cannot write to {folder}: {error.strerror}", cure=cure_for(error))
