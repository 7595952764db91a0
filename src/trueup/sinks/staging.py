"""Files that tasks of Spark write and that the driver has not committed yet.

Each run has a folder of its own inside the folder of the sink, and locks it as long as it lives: the next run removes
the folders of runs that have ended. Tasks never create this folder. A task that is still running when its batch is over
therefore cannot leave a file behind, and an executor that does not share the folder of the sink fails.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueup.config.files import make_folder
from trueup.sinks.base import Document, Mark, SinkDown
from trueup.sinks.columns import Columns, by_table

if TYPE_CHECKING:
    import pyarrow as pa

# No table has a folder with this name: `file_name` escapes the dot.
_FOLDER = ".trueup"
_LOCK = "lock"
# What the driver is about to make visible; see `delta`.
INTENT = "commit.json"


class Staging:
    """The folder of this run, on the driver."""

    def __init__(self, root: Path) -> None:
        self._root = root / _FOLDER
        self._run: Path | None = None
        self._lock = -1
        self._batch = 0

    def begin(self) -> Path:
        """Remove the files of the last batch; return the folder for those of the next one."""
        if self._run is None:
            self._run = self._open()
        self.end()
        self._batch += 1
        folder = self._run / str(self._batch)
        folder.mkdir(mode=0o700)
        return folder

    def end(self) -> None:
        """Remove what is left of the last batch: files of attempts that Spark repeated."""
        if self._run is not None:
            with suppress(FileNotFoundError):
                shutil.rmtree(self._run / str(self._batch))

    def left(self) -> Iterator[Path]:
        """Yield the folder of each run that has ended, with its last batch, and remove it afterwards."""
        for run in sorted(self._root.glob("*/")):
            with suppress(FileNotFoundError, NotADirectoryError), _locked(run) as is_ours:
                if is_ours:
                    yield from (path for path in run.iterdir() if path.is_dir() and not path.is_symlink())
                    shutil.rmtree(run)

    def close(self) -> None:
        """Remove the folder of this run."""
        if self._run is not None:
            shutil.rmtree(self._run, ignore_errors=True)
            os.close(self._lock)
            self._run, self._lock = None, -1

    def _open(self) -> Path:
        while True:
            run = self._root / uuid.uuid4().hex
            make_folder(run, mode=0o700)
            try:
                lock = os.open(run / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            except FileNotFoundError:  # removed by a run that started at the same time
                continue
            # A file system without locks: then no run removes what another one left.
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if run.exists():
                self._lock = lock
                return run
            os.close(lock)


@contextmanager
def _locked(run: Path) -> Iterator[bool]:
    """Yield whether the run has ended; lock its folder in this case."""
    try:
        lock = os.open(run / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        # Killed before it had a lock: the folder is empty.
        with suppress(OSError):
            run.rmdir()
        yield False
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        yield False
        return
    try:
        yield True
    finally:
        os.close(lock)


class FileWriter(ABC):
    """Writes the documents of a task into files of the folder of its batch; pickled without documents."""

    def __init__(self, folder: Path, columns: Mapping[str, Columns]) -> None:
        self.folder = folder
        self.columns = columns
        self._chunk: dict[str, list[tuple[list[Document], pa.Table]]] = {}

    def write(self, batch: Sequence[Document], *, mark: Mark) -> None:
        """Convert the documents and keep them until `flush`; raise SinkRejected for those that cannot be stored."""
        grouped = by_table(batch)
        # All tables first, so that rows are refused before anything is kept.
        rows = {table: self.columns[table].table(documents, mark) for table, documents in grouped.items()}
        for table, documents in grouped.items():
            self._chunk.setdefault(table, []).append((documents, rows[table]))

    def flush(self) -> None:
        """Write what is kept."""
        chunk, self._chunk = self._chunk, {}
        try:
            for table, parts in chunk.items():
                self.store(table, *_once(self.columns[table], parts))
        except OSError as error:
            raise SinkDown(
                f"the folder {self.folder} cannot be written or read on {socket.gethostname()}: {error}",
                cure="all executors must have the folder of the sink under the same path: mount it, or use --engine"
                " local; check the free space and the permissions",
            ) from None

    @abstractmethod
    def store(self, table: str, documents: Sequence[Document], rows: pa.Table) -> None:
        """Write the documents of a table; `rows` has one row per document, also for deleted rows."""

    @abstractmethod
    def finish(self) -> Sequence[Any]:
        """Return what the driver has to commit."""


def _once(columns: Columns, parts: Sequence[tuple[list[Document], pa.Table]]) -> tuple[list[Document], pa.Table]:
    """Return the documents of a chunk, each once: one that was tried alone is written again with the others."""
    import pyarrow as pa

    documents = [document for part, _ in parts for document in part]
    rows = pa.concat_tables([table for _, table in parts])
    last = {(document.key, document.shard if columns.routed else 0): i for i, document in enumerate(documents)}
    if len(last) == len(documents):
        return documents, rows
    return [documents[index] for index in last.values()], rows.take(pa.array(last.values(), pa.int64()))


def write_file(path: Path, rows: pa.Table) -> None:
    """Write a Parquet file and put its content on the disk; the caller puts its name there."""
    import pyarrow.parquet as pq

    with path.open("wb") as file:
        pq.write_table(rows, file)
        file.flush()
        os.fsync(file.fileno())
