"""The undo file: every row that a repair replaces or deletes, as it was before.

It is complete on the disk before the first write, and only its owner can read it. It has gzip-compressed lines. The
first line is a JSON object; each other line begins with its kind and the numbers of its table and its node:

    b  table  node  key…  guard  made  fields…   before: the row (guard \\N: there was no row), and the guard of the row
                                                 that replaces it (\\N: it is deleted; ?: known only once it is written)
    e                                            end of the rows before: the file is complete
    a  table  node  key…  made                   after: the guard of the row that was written, where line b does not
                                                 have it or a trigger changed the row; -: the row had changed and was
                                                 not written

Lines `a` are on the disk before the transaction of the node is committed, and override lines `b`. So a row that the
repair wrote can always be distinguished from a row that was changed later. If the transaction was not committed, the
rows are as lines `b` say.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from trueup.config.files import PartFile, open_private
from trueup.errors import StoreError
from trueup.report.json_file import cure_for
from trueup.rows.write.copy_text import NULL
from trueup.verbs.repair.writes import Writes

FORMAT = 3
# In place of a guard: the row was not written.
NOT_WRITTEN = b"-"
_UNKNOWN = b"?"
_BEFORE, _AFTER, _END = b"b", b"a", b"e\n"


class UndoFile:
    """Writes an undo file."""

    def __init__(
        self, path: Path, nodes: tuple[str, ...], head: Mapping[str, Any], another: Callable[[], Path] | None = None
    ) -> None:
        """`another` returns the next name if another process takes this one; without it, that is an error."""
        self.path, self._another = path, another
        self._numbers = {node: str(number).encode() for number, node in enumerate(nodes)}
        self._lock = threading.Lock()
        if path.exists():
            raise self._exists()
        try:
            self._part = PartFile(path)
            self._file = gzip.GzipFile(fileobj=self._part.file, mode="wb", compresslevel=1, mtime=0)
            self._file.write(json.dumps({"format": FORMAT, "nodes": list(nodes), **head}).encode() + b"\n")
        except OSError as error:
            raise self._error(error) from None

    def before(self, table: int, node: str, writes: Writes) -> None:
        """Add the rows before of the keys of a table that will be written."""
        start = b"%s\t%d\t%s\t" % (_BEFORE, table, self._numbers[node])
        lines = [
            b"%s%s\t%s\t%s\t%s" % (start, key, guard or NULL, _UNKNOWN if made is None else made or NULL, line or b"\n")
            for key, guard, made, line in zip(writes.ids, writes.guards, writes.made, writes.before, strict=True)
        ]
        try:
            self._file.write(b"".join(lines))
        except OSError as error:
            raise self._error(error) from None

    def keep(self) -> None:
        """Complete the file: when this returns it is on the disk under its name."""
        try:
            self._file.write(_END)
            self._file.close()
            self._keep_new()
            self._kept = os.fstat(self._part.file.fileno())
            self._part.file.close()
        except OSError as error:
            raise self._error(error) from None

    def _keep_new(self) -> None:
        while True:
            try:
                return self._part.keep(new=True)
            except FileExistsError:
                if self._another is None:
                    raise self._exists() from None
            self.path = self._part.path = self._another()

    def after(self, table: int, node: str, rows: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Add the guards of rows of a table that were written on a node; when this returns they are on the disk."""
        start = b"%s\t%d\t%s\t" % (_AFTER, table, self._numbers[node])
        packed = io.BytesIO()
        with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1, mtime=0) as file:
            for key, guard in rows:
                file.write(b"%s%s\t%s\n" % (start, key, guard or NULL))
        with self._lock:
            try:
                # Not through a link that another user may have put in its place since.
                with open(open_private(self.path, os.O_WRONLY | os.O_APPEND), "ab") as raw:
                    self._append(raw, packed.getvalue())
            except OSError as error:
                raise self._error(error) from None

    @staticmethod
    def _append(raw: IO[bytes], piece: bytes) -> None:
        size = os.fstat(raw.fileno()).st_size
        try:
            raw.write(piece)
            raw.flush()
            os.fsync(raw.fileno())
        except OSError:
            # A partial piece would hide what another node appends after it.
            with suppress(OSError):
                os.ftruncate(raw.fileno(), size)
            raise

    def check_kept(self) -> None:
        """Raise StoreError if the complete file is no longer under its name: nothing could be undone."""
        try:
            is_same = os.path.samestat(os.stat(self.path, follow_symlinks=False), self._kept)
        except OSError as error:
            raise self._error(error) from None
        if not is_same:
            raise StoreError(f"the undo file {self.path} was replaced", cure="run the command again")

    def discard(self) -> None:
        """Remove the file: nothing was written on any node."""
        with suppress(OSError, ValueError):
            self._file.close()
        self._part.discard()

    def _exists(self) -> StoreError:
        return StoreError(
            f"the file {self.path} exists, and an undo file is never overwritten", cure="give another path with --undo"
        )

    def _error(self, error: OSError) -> StoreError:
        return StoreError(f"cannot write the undo file {self.path}: {error.strerror}", cure=cure_for(error))


def read_head(path: Path) -> dict[str, Any]:
    """Return the first line of the file: the nodes, and per table its columns and its hash."""
    with _lines(path) as lines:
        try:
            head = json.loads(next(lines, b""))
        except ValueError:
            head = None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise _cannot_read(path, "it is not an undo file, or of another version")
    return head


Place = tuple[int, int]  # the numbers of table and node
Record = tuple[Place, bytes, "bytes | None", "bytes | None", "bytes | None"]


def read_before(path: Path, widths: Sequence[int]) -> Iterator[Record]:
    """Yield place, key, guard, made and line of every row before; `widths`: the number of key columns per table."""
    for place, key, parts in _records(path, _BEFORE, widths, 3):
        guard, made, line = parts
        is_row = guard != NULL
        after = NOT_WRITTEN if made == _UNKNOWN else None if made == NULL else made
        yield place, key, guard if is_row else None, after, line if is_row else None


def read_after(path: Path, widths: Sequence[int]) -> Iterator[tuple[Place, bytes, bytes | None]]:
    """Yield place, key and guard of every row of a line `a`."""
    for place, key, (guard,) in _records(path, _AFTER, widths, 1):
        made = guard.rstrip(b"\n")
        yield place, key, None if made == NULL else made


def _records(path: Path, kind: bytes, widths: Sequence[int], fields: int) -> Iterator[tuple[Place, bytes, list[bytes]]]:
    """Yield place, key and the fields after the key of the lines of one kind."""
    with _lines(path) as lines:
        next(lines, None)
        for line in lines:
            if not line.startswith(kind + b"\t"):
                continue
            try:
                _, table, node, rest = line.split(b"\t", 3)
                width = widths[int(table)]
            except (ValueError, IndexError):
                raise _cannot_read(path, "a line is damaged") from None
            parts = rest.split(b"\t", width + fields - 1)
            if len(parts) < width + fields or not line.endswith(b"\n"):
                raise _cannot_read(path, "a line is damaged")
            yield (int(table), int(node)), b"\t".join(parts[:width]), parts[width:]


class _lines:
    """The lines of a file; a file that ends in the middle is an error.

    After the end of the rows before, a partial piece is ignored: its transaction was never committed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Iterator[bytes]:
        try:
            self._file = gzip.open(self._path, "rb")
        except OSError as error:
            raise _cannot_read(self._path, error.strerror or "cannot open it") from None
        return self._read()

    def _read(self) -> Iterator[bytes]:
        is_complete = False
        try:
            for line in self._file:
                is_complete = is_complete or line == _END
                yield line
        except (OSError, EOFError, zlib.error) as error:
            if not is_complete:
                raise _cannot_read(self._path, f"it is damaged or truncated ({error})") from None
        if not is_complete:
            raise _cannot_read(self._path, "it is truncated")

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _cannot_read(path: Path, reason: str) -> StoreError:
    return StoreError(f"cannot read the undo file {path}: {reason}", cure="check the path")
