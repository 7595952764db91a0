"""Differences on disk while a run goes on: a run may find more than fits into memory."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from trueup.errors import StoreError
from trueup.report.json_file import cure_for
from trueup.rows.align import Difference


class Spool:
    """A file of differences, read back in order or by place; gone when closed, never readable by others."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            # Unlinked from the start: nothing is left behind, whatever happens to this process.
            self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder, prefix=".trueup-")  # noqa: SIM115
        except OSError as error:
            raise _cannot_write(folder, error) from None
        self.count = 0

    def add(self, difference: Difference) -> None:
        """Append one."""
        try:
            self._file.seek(0, 2)
            pickle.dump(difference, self._file, pickle.HIGHEST_PROTOCOL)
        except OSError as error:
            raise _cannot_write(self._folder, error) from None
        self.count += 1

    def __iter__(self) -> Iterator[Difference]:
        return (difference for _, difference in self.with_places())

    def with_places(self) -> Iterator[tuple[int, Difference]]:
        """All of them, each with its place in the file; several readers may be at work at once."""
        self._flush()
        place = 0
        for _ in range(self.count):
            self._file.seek(place)
            difference: Difference = pickle.load(self._file)
            following = self._file.tell()
            yield place, difference
            place = following

    def at(self, place: int) -> Difference:
        """The one at a place."""
        self._flush()
        self._file.seek(place)
        found: Difference = pickle.load(self._file)
        return found

    def _flush(self) -> None:
        try:
            self._file.flush()
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
