"""The writes of a node until they are written: in memory if they are few, else on disk."""

from __future__ import annotations

import pickle
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from trueup.errors import StoreError
from trueup.report.json_file import cure_for
from trueup.verbs.repair.modes import Act
from trueup.verbs.repair.writes import Writes

# Bytes that stay in memory, and bytes that a row counts besides its line.
_MEMORY_BYTES = 64_000_000
_ROW_BYTES = 400


class SpoolFile:
    """The writes of one node, of all tables; its file has no name and is gone when this process ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            # Unlinked from the start: no row stays on the disk, however this process ends.
            self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder, prefix=".trueup-")  # noqa: SIM115
        except OSError as error:
            raise self._error(error) from None
        self._size = 0

    def add(self, writes: Writes) -> Writes | int:
        """Keep one batch; return it, or its position in the file if the memory is used up."""
        self._size += _ROW_BYTES * len(writes.keys) + sum([len(line) for line in writes.after if line is not None])
        if self._size <= _MEMORY_BYTES:
            return writes
        try:
            place = self._file.seek(0, 2)
            pickle.dump(writes, self._file, pickle.HIGHEST_PROTOCOL)
        except OSError as error:
            raise self._error(error) from None
        return place

    def read(self, place: int) -> Writes:
        """Return a batch of the file."""
        self._file.seek(place)
        writes: Writes = pickle.load(self._file)
        return writes

    def close(self) -> None:
        """Free the disk space."""
        self._file.close()

    def _error(self, error: OSError) -> StoreError:
        return StoreError(f"cannot write a temporary file in {self._folder}: {error.strerror}", cure=cure_for(error))


class Spool:
    """The writes of one table on one node, batch by batch."""

    def __init__(self, file: SpoolFile) -> None:
        self._file = file
        self._batches: list[Writes | int] = []
        self.counts: Counter[Act] = Counter()

    def add(self, writes: Writes) -> None:
        """Add one batch."""
        self.counts.update(writes.acts)
        self._batches.append(self._file.add(writes))

    def __iter__(self) -> Iterator[Writes]:
        for batch in self._batches:
            yield self._file.read(batch) if isinstance(batch, int) else batch
