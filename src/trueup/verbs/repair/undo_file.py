"""The undo file: every row that a repair writes over, as it was. There before the first write, and private.

Compressed lines. The first is a head of JSON; each other begins with its kind and the number of its node:

    b  node  key…  guard  made  fields…   before: the row as it was (no guard: there was none), and the hash of the row
                                          that takes its place (none: it is deleted; ?: not known before it is written)
    e                                     the end of the rows as they were: all of them are there
    a  node  key…  made                   after: the hash of the row that was written, where the line before does not
                                          say so; a dash: the row had changed meanwhile, and was not written

The lines `a` are on the disk before the node's transaction is committed, and hold. So a row that was written
can always be told from one that somebody changed later; and where the commit never came, the rows are as the
lines `b` say.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from trueup.errors import StoreError
from trueup.report.json_file import cure_for
from trueup.rows.write.copy_text import NULL
from trueup.verbs.repair.prepare import Writes

FORMAT = 1
# The guard of a row that was to be written, and was not.
NOT_WRITTEN = b"-"
_UNKNOWN = b"?"
_BEFORE, _AFTER, _END = b"b", b"a", b"e\n"


class UndoFile:
    """An undo file that is being written."""

    def __init__(self, path: Path, nodes: tuple[str, ...], head: Mapping[str, Any]) -> None:
        self.path = path
        self._numbers = {node: str(number).encode() for number, node in enumerate(nodes)}
        self._lock = threading.Lock()
        self._part = path.with_name(f".{path.name}.part")
        if path.exists():
            raise StoreError(
                f"there is a file {path}", cure="name another one with --undo: an undo file is never written over"
            )
        try:
            self._raw: IO[bytes] = open(os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")  # noqa: SIM115
            self._file = gzip.GzipFile(fileobj=self._raw, mode="wb", compresslevel=1, mtime=0)
            self._file.write(json.dumps({"format": FORMAT, "nodes": list(nodes), **head}).encode() + b"\n")
        except OSError as error:
            raise self._cannot(error) from None

    def before(self, node: str, writes: Writes) -> None:
        """The rows as they are, of the keys that will be written."""
        start = _BEFORE + b"\t" + self._numbers[node] + b"\t"
        lines = [
            b"%s%s\t%s\t%s\t%s" % (start, key, guard or NULL, _UNKNOWN if made is None else made or NULL, line or b"\n")
            for key, guard, made, line in zip(writes.ids, writes.guards, writes.made, writes.before, strict=True)
        ]
        try:
            self._file.write(b"".join(lines))
        except OSError as error:
            raise self._cannot(error) from None

    def keep(self) -> None:
        """All rows are in it: from here on it is on the disk, under its name."""
        try:
            self._file.write(_END)
            self._file.close()
            self._raw.flush()
            os.fsync(self._raw.fileno())
            self._raw.close()
            os.replace(self._part, self.path)
            _sync_folder(self.path.parent)
        except OSError as error:
            raise self._cannot(error) from None

    def after(self, node: str, rows: Iterable[tuple[bytes, bytes | None]]) -> None:
        """The hashes of rows that were written on a node, where they were not known before: on the disk at the end."""
        start = _AFTER + b"\t" + self._numbers[node] + b"\t"
        packed = io.BytesIO()
        with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1, mtime=0) as file:
            for key, guard in rows:
                file.write(b"%s%s\t%s\n" % (start, key, guard or NULL))
        with self._lock:
            size = self.path.stat().st_size
            try:
                with open(self.path, "ab") as raw:
                    raw.write(packed.getvalue())
                    raw.flush()
                    os.fsync(raw.fileno())
            except OSError as error:
                # Half a piece would hide what another node adds behind it.
                with suppress(OSError):
                    os.truncate(self.path, size)
                raise self._cannot(error) from None

    def discard(self) -> None:
        """Nothing was written anywhere: the file is not needed."""
        with suppress(OSError, ValueError):
            self._file.close()
            self._raw.close()
        self._part.unlink(missing_ok=True)

    def _cannot(self, error: OSError) -> StoreError:
        return StoreError(f"cannot write the undo file {self.path}: {error.strerror}", cure=cure_for(error))


def _sync_folder(folder: Path) -> None:
    """The name of a new file is on the disk when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_head(path: Path) -> dict[str, Any]:
    """What the file is about."""
    with _lines(path) as lines:
        try:
            head = json.loads(next(lines, b""))
        except ValueError:
            head = None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise _cannot_read(path, "it is no undo file of this trueup")
    return head


Record = tuple[int, bytes, "bytes | None", "bytes | None", "bytes | None"]


def read_before(path: Path, width: int) -> Iterator[Record]:
    """Node, key, guard, made and line of every row as it was; `width` is the number of key columns."""
    for parts in _records(path, _BEFORE, width + 3):
        key, (guard, made) = b"\t".join(parts[2 : 2 + width]), parts[2 + width : 4 + width]
        is_row = guard != NULL
        shown = NOT_WRITTEN if made == _UNKNOWN else None if made == NULL else made
        yield int(parts[1]), key, guard if is_row else None, shown, parts[-1] if is_row else None


def read_after(path: Path, width: int) -> Iterator[tuple[int, bytes, bytes | None]]:
    """Node, key and guard of every row that was written, where the line before does not say so."""
    for parts in _records(path, _AFTER, width + 1):
        made = parts[-1].rstrip(b"\n")
        yield int(parts[1]), b"\t".join(parts[2 : 2 + width]), None if made == NULL else made


def _records(path: Path, kind: bytes, fields: int) -> Iterator[list[bytes]]:
    with _lines(path) as lines:
        next(lines, None)
        for line in lines:
            if not line.startswith(kind + b"\t"):
                continue
            parts = line.split(b"\t", 1 + fields)
            if len(parts) < 2 + fields or not line.endswith(b"\n"):
                raise _cannot_read(path, "a line of it is damaged")
            yield parts


class _lines:
    """The lines of a file; an end in the middle is an error, never a shorter file.

    Not so behind the rows as they were: half a piece there belongs to a transaction that was never committed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Iterator[bytes]:
        try:
            self._file = gzip.open(self._path, "rb")
        except OSError as error:
            raise _cannot_read(self._path, error.strerror or "it cannot be opened") from None
        return self._read()

    def _read(self) -> Iterator[bytes]:
        is_whole = False
        try:
            for line in self._file:
                is_whole = is_whole or line == _END
                yield line
        except (OSError, EOFError, zlib.error) as error:
            if not is_whole:
                raise _cannot_read(self._path, f"it is damaged or cut off ({error})") from None
        if not is_whole:
            raise _cannot_read(self._path, "it is cut off")

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _cannot_read(path: Path, why: str) -> StoreError:
    return StoreError(f"cannot read the undo file {path}: {why}", cure="check the path")
