"""The sink of a folder of Parquet files: every batch adds a file of changes with operation, mark and version.

The current row of a key is the one with the largest version, unless it is marked as deleted; `current_state` reads
these rows. The version of a file is the number at the start of its name.
"""

from __future__ import annotations

import json
import os
import re
import uuid
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trueup.config.files import make_folder, sync_folder
from trueup.config.model import Node
from trueup.errors import StoreError
from trueup.sinks.base import Document, Mark, Shards, SinkDown, SourceTable, StoredTable
from trueup.sinks.columns import AT, SEQ, SHARD, Columns, by_table
from trueup.sinks.keys import Place, fixed_shard, key_text
from trueup.sinks.options import Options
from trueup.sinks.staging import FileWriter, Staging, write_file

OP, VERSION, DELETED = "trueup_op", "trueup_version", "trueup_deleted"
_IDENTITY = b"trueup.identity"


class ParquetSink:
    """A folder with one folder of files per table."""

    driver_only: ClassVar[bool] = True

    def __init__(self, folder: Path, options: Options) -> None:
        self.folder = folder.absolute()
        self._native = options.choice("types", "exact", "native") == "native"
        self._moves = options.yes_no("moves", True)
        options.end()
        self._staging = Staging(self.folder)
        self._tables: dict[str, Columns] = {}
        self._page: tuple[tuple[str, int, datetime], list[Place]] | None = None

    def setup(self, tables: Sequence[SourceTable]) -> None:
        """Create the folders, and remove files of earlier runs that were not committed."""
        with self._errors():
            for _ in self._staging.left():
                pass
            for source in tables:
                make_folder(self._path(source.table), mode=0o700)
                for part in self._path(source.table).glob(".*.part"):
                    part.unlink()
        self._tables = {source.table: Columns(source, source.routed and self._moves, self._native) for source in tables}
        with self._errors():
            for table, columns in self._tables.items():
                self._start_again(self._path(table), columns)

    def write(self, batch: Sequence[Document], *, mark: Mark) -> None:
        """Add one file per table, atomically; a repeated batch only adds a version."""
        grouped = by_table(batch)
        rows = {table: self._tables[table].table(documents, mark) for table, documents in grouped.items()}
        with self._errors():
            for table, documents in grouped.items():
                self._add(self._path(table), rows[table], documents, self._tables[table])

    def begin(self, tables: Sequence[str]) -> ParquetWriter:
        """Return the writer of a batch; all its files have the next version of their table."""
        with self._errors():
            versions = {table: _next_version(self._path(table)) for table in tables}
            return ParquetWriter(self._staging.begin(), {table: self._tables[table] for table in tables}, versions)

    def part_of(self, table: str, key: tuple[str, ...], parts: int) -> int:
        """Distribute by a hash of the key."""
        return zlib.crc32(key_text(key).encode()) % parts

    def commit(self, results: Sequence[tuple[str, Path]]) -> None:
        """Move the files of a batch into the folders of their tables."""
        with self._errors():
            for table, path in results:
                os.replace(path, self._path(table) / path.name)
            for table in {table for table, _ in results}:
                sync_folder(self._path(table))
            self._staging.end()

    def stored(self, source: SourceTable) -> StoredTable:
        """Return the folder of a table, of which the newest version of each row is read."""
        columns = {name: name for name in Columns(source, False, self._native).names()}
        node = Node("sink", f"parquet:{self._path(source.table)}")
        return StoredTable(node, source.table, columns, True, source.routed and self._moves)

    def older(
        self,
        table: str,
        shards: Shards,
        start_seq: int,
        started_at: datetime,
        after: tuple[str, ...] | None,
        limit: int,
    ) -> Sequence[tuple[int, tuple[str, ...]]]:
        """Return a page; all files are read for the first page, and the result is kept for the others."""
        request = table, start_seq, started_at
        if after is None or self._page is None or self._page[0] != request:
            with self._errors():
                self._page = request, self._older(table, start_seq, started_at)
        return page(self._page[1], shards, after, limit, routed=self._tables[table].routed)

    def close(self) -> None:
        """Free the cached page, and remove files that were not committed."""
        self._page = None
        self._staging.close()

    def _older(self, table: str, start_seq: int, started_at: datetime) -> list[Place]:
        key = self._tables[table].source.key
        state = current_state(self._path(table), columns=[*key, SHARD, SEQ, AT])
        return older_places(state, key, start_seq, started_at)

    def _add(self, folder: Path, rows: pa.Table, documents: Sequence[Document], columns: Columns) -> None:
        changes, name = _changes(rows, documents, columns, _next_version(folder))
        part = folder / f".{name}.part"
        write_file(part, changes)
        os.replace(part, folder / name)
        sync_folder(folder)

    def _start_again(self, folder: Path, columns: Columns) -> None:
        """Add an empty file if the documents of the folder have another key: they are not current any more."""
        newest = max(folder.glob("*.parquet"), default=None)
        if newest is not None and identity_of(newest) != list(columns.identity):
            self._add(folder, columns.table([], Mark(0, datetime.now(timezone.utc))), [], columns)

    def _path(self, table: str) -> Path:
        return self.folder / file_name(table)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SinkDown(
                f"the folder {self.folder} cannot be written or read: {error}",
                cure="check the free space and the permissions",
            ) from None


class ParquetWriter(FileWriter):
    """Writes files of changes for the tasks of one batch."""

    def __init__(self, folder: Path, columns: Mapping[str, Columns], versions: Mapping[str, int]) -> None:
        super().__init__(folder, columns)
        self._versions = versions
        self._written: list[tuple[str, Path]] = []

    def store(self, table: str, documents: Sequence[Document], rows: pa.Table) -> None:
        """Write a file."""
        changes, name = _changes(rows, documents, self.columns[table], self._versions[table])
        write_file(self.folder / name, changes)
        self._written.append((table, self.folder / name))

    def finish(self) -> Sequence[tuple[str, Path]]:
        """Return table and path of each file."""
        return self._written


def _next_version(folder: Path) -> int:
    """Return the version after the largest one; read every time, because another job may have written."""
    return max((_version(path) for path in folder.glob("*.parquet")), default=0) + 1


def _changes(rows: pa.Table, documents: Sequence[Document], columns: Columns, version: int) -> tuple[pa.Table, str]:
    """Return rows as changes with operation and version, and the name of a new file for them."""
    rows = rows.append_column(OP, pa.array([document.op for document in documents], pa.string()))
    rows = rows.append_column(DELETED, pa.array([document.row is None for document in documents], pa.bool_()))
    rows = rows.append_column(VERSION, pa.array([version] * rows.num_rows, pa.int64()))
    rows = rows.replace_schema_metadata({_IDENTITY: json.dumps(columns.identity)})
    return rows, f"{version:012d}-{uuid.uuid4().hex[:8]}.parquet"


def current_state(folder: Path | str, *, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the current rows of the folder of a table: the newest change of each document, without deletions.

    Files of a former key are left out: when a table gets another key, all its rows are written again.
    """
    paths = sorted(Path(folder).glob("*.parquet"))
    if not paths:
        raise StoreError(f"the folder {folder} contains no changes", cure="use the folder of a table: DIR/schema.table")
    names = identity_of(paths[-1])
    read_columns = None if columns is None else list(dict.fromkeys([*columns, *names, VERSION, DELETED]))
    changes = _together([pq.read_table(path, columns=read_columns) for path in paths if identity_of(path) == names])
    same = [*names, VERSION]
    newest = changes.select(same).group_by(names).aggregate([(VERSION, "max")]).rename_columns(same)
    state = changes.join(newest, keys=same, join_type="inner")
    state = state.filter(pa.compute.invert(state[DELETED])).drop_columns([DELETED])
    return state if columns is None else state.select(list(columns))


def identity_of(path: Path) -> list[str]:
    """Return the columns that identify a document in a file."""
    names: list[str] = json.loads(pq.read_schema(path).metadata[_IDENTITY])
    return names


def _together(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of all files; a column that was added later is in newer files only.

    A column that has types of different kinds, because its type was changed, is text.
    """
    kinds: dict[str, set[str]] = {}
    for table in tables:
        for field in table.schema:
            kinds.setdefault(field.name, set()).add(_kind(field.type))
    mixed = {name for name, found in kinds.items() if len(found) > 1}
    texts = [
        pa.table(
            {name: _text(table[name]) if name in mixed else table[name] for name in table.column_names},
            metadata=table.schema.metadata,
        )
        for table in tables
    ]
    return pa.concat_tables(texts, promote_options="permissive")


def _kind(type_: pa.DataType) -> str:
    """Return the same text for types that Arrow can put into one column."""
    return "integer" if pa.types.is_integer(type_) else str(type_)


def _text(values: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_binary(values.type):
        return pa.chunked_array([[None if value is None else f"\\x{value.hex()}" for value in values.to_pylist()]])
    return values.cast(pa.string())


def older_places(state: pa.Table, key: Sequence[str], start_seq: int, started_at: datetime) -> list[Place]:
    """Return shard and key of rows with an older mark, in the order of the key texts."""
    limit = pa.scalar(started_at, pa.timestamp("us", "UTC"))
    old = state.filter(pc.or_(pc.less(state[SEQ], start_seq), pc.less(state[AT], limit)))
    keys = zip(*(old[name].to_pylist() for name in key), strict=True)
    places = [
        (shard, tuple(str(part) for part in parts)) for shard, parts in zip(old[SHARD].to_pylist(), keys, strict=True)
    ]
    return sorted(places, key=lambda place: (place[1], place[0]))


def page(
    places: Sequence[Place], shards: Shards, after: tuple[str, ...] | None, limit: int, *, routed: bool
) -> list[Place]:
    """Return the next page after a key, with all shards of its last key."""
    start = 0 if after is None else bisect_right(places, after, key=lambda place: place[1])
    fixed = fixed_shard(shards, routed=routed)
    selected: list[Place] = []
    for shard, key in islice(places, start, None):
        if len(selected) >= limit and key != selected[-1][1]:
            break
        if fixed is not None or shards == "all" or shard in shards:
            selected.append((shard if fixed is None else fixed, key))
    return selected


def file_name(table: str) -> str:
    """Return the name of the folder of a table: different tables have different folders.

    Characters that a file system or a reader of Delta may not accept are written as `~` and hexadecimal digits.
    """
    name = re.sub(r"[^\w. -]|^[._]", lambda match: "".join(f"~{byte:02x}" for byte in match.group().encode()), table)
    # File systems have a limit of 255 bytes.
    return name if len(name.encode()) <= 200 else f"{name[:60]}~~{sha256(table.encode()).hexdigest()[:32]}"


def _version(path: Path) -> int:
    number = path.name.partition("-")[0]
    return int(number) if number.isdigit() else 0
