"""What is to be written, on disk until it is: a repair may be larger than memory."""

from __future__ import annotations

import pickle
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from trueup.errors import StoreError
from trueup.repair.modes import Act
from trueup.repair.prepare import Writes
from trueup.report.json_file import cure_for


class Pile:
    """What one node gets, portion by portion; gone when closed, and when this process ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            # Unlinked from the start: no row is left behind on the disk, whatever happens to this process.
            self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder, prefix=".trueup-")  # noqa: SIM115
        except OSError as error:
            raise self._cannot(error) from None
        self._portions = 0
        self.counts: Counter[Act] = Counter()

    def add(self, writes: Writes) -> None:
        """One more portion."""
        try:
            self._file.seek(0, 2)
            pickle.dump(writes, self._file, pickle.HIGHEST_PROTOCOL)
        except OSError as error:
            raise self._cannot(error) from None
        self._portions += 1
        self.counts.update(writes.acts)

    def __iter__(self) -> Iterator[Writes]:
        place = 0
        for _ in range(self._portions):
            self._file.seek(place)
            found: Writes = pickle.load(self._file)
            place = self._file.tell()
            yield found

    def close(self) -> None:
        """Let go of the disk space."""
        self._file.close()

    def _cannot(self, error: OSError) -> StoreError:
        return StoreError(f"cannot write to {self._folder}: {error.strerror}", cure=cure_for(error))
