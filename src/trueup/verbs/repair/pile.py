"""What is to be written, in memory as long as it is little, else on disk: a repair may be larger than memory."""

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
from trueup.verbs.repair.prepare import Writes

# So many bytes stay in memory, a row counted as its line and what is known of it.
_NEAR_BYTES = 64_000_000
_ROW_BYTES = 400


class Pile:
    """What one node gets, portion by portion; gone when closed, and when this process ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            # Unlinked from the start: no row is left behind on the disk, whatever happens to this process.
            self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder, prefix=".trueup-")  # noqa: SIM115
        except OSError as error:
            raise self._cannot(error) from None
        self._near: list[Writes] = []
        self._size = self._portions = 0
        self.counts: Counter[Act] = Counter()

    def add(self, writes: Writes) -> None:
        """One more portion."""
        self.counts.update(writes.acts)
        self._size += _ROW_BYTES * len(writes.keys) + sum([len(line) for line in writes.after if line is not None])
        if self._size <= _NEAR_BYTES:
            self._near.append(writes)
            return
        try:
            self._file.seek(0, 2)
            pickle.dump(writes, self._file, pickle.HIGHEST_PROTOCOL)
        except OSError as error:
            raise self._cannot(error) from None
        self._portions += 1

    def __iter__(self) -> Iterator[Writes]:
        yield from self._near
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
