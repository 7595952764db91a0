"""The sink of Delta tables, which equal their sources after each batch.

A table is split into buckets by a hash of the key. A batch reads the buckets of its keys one by one, rewrites them
without the deleted rows and with the new ones, and replaces their files in one commit. Old files are kept for readers
for some hours. If another writer commits at the same time, the commit fails and the batch is repeated.

Tasks of Spark rewrite the buckets, each bucket in one task, into the folder of their batch. The driver records what it
is about to do, moves the files into the table, and commits. If it is killed in between, the next run removes what was
moved and not committed.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote

from trueup.config.files import make_folder, sync_delta_commit, sync_file, sync_folder
from trueup.config.model import Node
from trueup.errors import CheckFailed
from trueup.sinks.base import Document, Mark, Shards, SinkDown, SourceTable, StoredTable
from trueup.sinks.columns import AT, SEQ, SHARD, Columns, by_table
from trueup.sinks.keys import Place, key_text
from trueup.sinks.options import Options
from trueup.sinks.parquet import file_name, older_places, page
from trueup.sinks.staging import INTENT, FileWriter, Staging, write_file

if TYPE_CHECKING:
    import pyarrow as pa

BUCKET = "trueup_bucket"
BUCKETS = 16
_CLEAN_EVERY = 50
# Files that this sink writes.
_NAME = re.compile(rf"{BUCKET}=\d+/part-[0-9a-f-]{{36}}\.parquet")


@dataclass(frozen=True)
class BucketFile:
    """A file of a bucket, as named in the log of the table."""

    path: str
    size: int


@dataclass(frozen=True)
class TablePart:
    """A table before a batch: its folder, the number of its buckets, and their files."""

    folder: Path
    buckets: int
    files: Mapping[int, Sequence[BucketFile]]


@dataclass(frozen=True)
class NewBucket:
    """A bucket that was rewritten; no path: it is empty now."""

    table: str
    bucket: int
    path: Path | None
    rows: int


class DeltaSink:
    """A folder with one Delta table per table of the tube."""

    driver_only: ClassVar[bool] = True

    def __init__(self, folder: Path, options: Options) -> None:
        self.folder = folder.absolute()
        self._native = options.choice("types", "exact", "native") == "native"
        self._moves = options.yes_no("moves", True)
        self._buckets = options.number("buckets", 0)
        self._keep_hours = options.number("keep_hours", 24)
        options.end()
        self._staging = Staging(self.folder)
        self._begun: dict[str, Any] = {}
        self._batch = self.folder
        self._tables: dict[str, tuple[Columns, int]] = {}
        self._page: tuple[tuple[str, int, datetime], list[Place]] | None = None

    def setup(self, tables: Sequence[SourceTable]) -> None:
        """Create the tables, or add missing columns to existing ones; remove files that were not committed."""
        with self._errors():
            for folder in self._staging.left():
                _undo(self.folder, folder / INTENT)
            made = {source.table: Columns(source, source.routed and self._moves, self._native) for source in tables}
            self._tables = {name: (columns, self._ensure(name, columns)) for name, columns in made.items()}

    def write(self, batch: Sequence[Document], *, mark: Mark) -> None:
        """Write one commit per table; a repeated batch writes the same rows."""
        grouped = by_table(batch)
        # Convert all tables first, so that rows are refused before anything is written.
        rows = {table: self._tables[table][0].table(documents, mark) for table, documents in grouped.items()}
        with self._errors():
            for table, documents in grouped.items():
                self._replace(table, rows[table], documents)

    def begin(self, tables: Sequence[str]) -> DeltaWriter:
        """Return the writer of a batch, which rewrites the files that the tables have now."""
        with self._errors():
            self._begun = {table: self._open(table) for table in tables}
            self._batch = self._staging.begin()
            parts = {
                table: TablePart(self._path(table), self._tables[table][1], _files(delta))
                for table, delta in self._begun.items()
            }
            return DeltaWriter(self._batch, {table: self._tables[table][0] for table in tables}, parts)

    def part_of(self, table: str, key: tuple[str, ...], parts: int) -> int:
        """Distribute by bucket."""
        return _bucket(key, self._tables[table][1]) % parts

    def commit(self, results: Sequence[NewBucket]) -> None:
        """Write one commit per table with the buckets that the tasks rewrote."""
        with self._errors():
            for table, delta in self._begun.items():
                if buckets := [bucket for bucket in results if bucket.table == table]:
                    self._commit_staged(table, delta, buckets)
            self._staging.end()

    def stored(self, source: SourceTable) -> StoredTable:
        """Return the folder of a table, of which the newest version is read."""
        columns = {name: name for name in Columns(source, False, self._native).names()}
        node = Node("sink", f"delta:{self._path(source.table)}")
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
        """Return a page; key and marks are read for the first page and kept for the others."""
        request = table, start_seq, started_at
        if after is None or self._page is None or self._page[0] != request:
            key = self._tables[table][0].source.key
            with self._errors():
                state = self._open(table).to_pyarrow_table(columns=[*key, SHARD, SEQ, AT])
            self._page = request, older_places(state, key, start_seq, started_at)
        return page(self._page[1], shards, after, limit, routed=self._tables[table][0].routed)

    def close(self) -> None:
        """Free the cached page, and remove files that were not committed."""
        self._page = None
        self._staging.close()

    def _replace(self, table: str, rows: pa.Table, documents: Sequence[Document]) -> None:
        """Rewrite the touched buckets and replace their files."""
        columns, buckets = self._tables[table]
        delta, folder = self._open(table), self._path(table)
        files = _files(delta)
        new: list[NewBucket] = []
        for bucket, places in _touched(documents, buckets).items():
            old = [folder / unquote(file.path) for file in files.get(bucket, ())]
            merged = _merged(old, columns, rows, documents, places)
            place = folder / f"{BUCKET}={bucket}"
            make_folder(place)
            new.append(_store(place, merged, table, bucket))
        self._commit(table, delta, files, new)

    def _commit_staged(self, table: str, delta: Any, buckets: Sequence[NewBucket]) -> None:
        """Move the files of a batch into the table and commit them."""
        folder = self._path(table)
        moved = [
            replace(bucket, path=bucket.path and folder / f"{BUCKET}={bucket.bucket}" / bucket.path.name)
            for bucket in buckets
        ]
        intent = {
            "table": folder.name,
            "version": delta.version(),
            "files": [f"{bucket.path.parent.name}/{bucket.path.name}" for bucket in moved if bucket.path],
        }
        (self._batch / INTENT).write_text(json.dumps(intent), encoding="utf-8")
        sync_file(self._batch / INTENT)
        for old, new in zip(buckets, moved, strict=True):
            if old.path and new.path:
                make_folder(new.path.parent)
                os.replace(old.path, new.path)
                sync_folder(new.path.parent)
        try:
            self._commit(table, delta, _files(delta), moved)
        except Exception:
            # Another writer was first, or the disk is full: the files are not part of the table.
            _undo(self.folder, self._batch / INTENT)
            raise

    def _commit(
        self, table: str, delta: Any, files: Mapping[int, Sequence[BucketFile]], buckets: Sequence[NewBucket]
    ) -> None:
        """Replace the files of buckets in one commit."""
        from deltalake import CommitProperties, Schema
        from deltalake.transaction import AddAction, RemoveAction

        folder, version, now = self._path(table), delta.version(), int(time.time() * 1000)
        actions: list[Any] = []
        for new in buckets:
            part: dict[str, str | None] = {BUCKET: str(new.bucket)}
            if new.path is not None:
                stats = json.dumps({"numRecords": new.rows, "minValues": {}, "maxValues": {}, "nullCount": {}})
                name = new.path.relative_to(folder).as_posix()
                actions.append(AddAction(name, new.path.stat().st_size, part, now, True, stats))
            actions += [RemoveAction(file.path, True, now, file.size, part) for file in files.get(new.bucket, ())]
        if not actions:
            return
        delta.create_write_transaction(
            actions,
            mode="append",
            schema=Schema.from_arrow(_with_bucket(self._tables[table][0].schema())),
            partition_by=[BUCKET],
            commit_properties=CommitProperties(max_commit_retries=0),
        )
        sync_delta_commit(folder, version)
        if self._keep_hours and (delta.version() + 1) % _CLEAN_EVERY == 0:
            self._open(table).vacuum(self._keep_hours, dry_run=False, enforce_retention_duration=False)

    def _ensure(self, table: str, columns: Columns) -> int:
        """Create or check the table; return the number of its buckets, which never changes."""
        from deltalake import DeltaTable, Field, Schema

        path, arrow_schema = self._path(table), _with_bucket(columns.schema())
        if not DeltaTable.is_deltatable(str(path)):
            make_folder(path, mode=0o700)
            count = self._buckets or BUCKETS
            DeltaTable.create(
                str(path),
                schema=Schema.from_arrow(arrow_schema),
                partition_by=[BUCKET],
                description=f"trueup tube, {count} buckets, by {json.dumps(columns.identity)}",
            )
            sync_delta_commit(path, -1)
            return count
        delta = self._open(table)
        match = re.fullmatch(r"trueup tube, (\d+) buckets, by (.*)", delta.metadata().description or "")
        known = {field.name: field for field in delta.schema().fields}
        required = {field.name: field for field in Schema.from_arrow(arrow_schema).fields}
        reasons = [] if match else ["it was not created by trueup"]
        if match and self._buckets not in (0, int(match[1])):
            reasons.append(f"it has {match[1]} buckets, not {self._buckets}")
        if match and match[2] != json.dumps(columns.identity):
            reasons.append(f"its rows are identified by {match[2]}, not by {json.dumps(columns.identity)}")
        reasons += [
            f"its column {name} is {known[name].type}, not {field.type}"
            for name, field in required.items()
            if name in known and known[name].type != field.type
        ]
        if reasons or not match:
            raise CheckFailed(
                [f"the Delta table {path} cannot store the rows: {reason}" for reason in reasons],
                cure="use another folder, or remove the option",
            )
        more = [Field(name, field.type, nullable=True) for name, field in required.items() if name not in known]
        if more:
            version = delta.version()
            delta.alter.add_columns(more)
            sync_delta_commit(path, version)
        return int(match[1])

    def _open(self, table: str) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(str(self._path(table)))

    def _path(self, table: str) -> Path:
        return self.folder / file_name(table)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from deltalake.exceptions import DeltaError

        try:
            yield
        except (OSError, DeltaError) as error:
            text = " ".join(str(error).split())[:500]
            raise SinkDown(
                f"the Delta table in {self.folder} cannot be written or read: {text}",
                cure="check the free space and the permissions; a conflict with another writer is retried",
            ) from None


class DeltaWriter(FileWriter):
    """Rewrites buckets for the tasks of one batch."""

    def __init__(self, folder: Path, columns: Mapping[str, Columns], parts: Mapping[str, TablePart]) -> None:
        super().__init__(folder, columns)
        self._parts = parts
        self._new: dict[tuple[str, int], NewBucket] = {}

    def store(self, table: str, documents: Sequence[Document], rows: pa.Table) -> None:
        """Rewrite the touched buckets: the files of the table, or those of the last chunk."""
        part = self._parts[table]
        for bucket, places in _touched(documents, part.buckets).items():
            last = self._new.get((table, bucket))
            old = [part.folder / unquote(file.path) for file in part.files.get(bucket, ())]
            if last is not None:
                old = [last.path] if last.path else []
            merged = _merged(old, self.columns[table], rows, documents, places)
            self._new[table, bucket] = _store(self.folder, merged, table, bucket)
            if last is not None and last.path:
                last.path.unlink()

    def finish(self) -> Sequence[NewBucket]:
        """Return the new buckets."""
        return list(self._new.values())


def _files(delta: Any) -> dict[int, list[BucketFile]]:
    """Return the files of a table by bucket."""
    import pyarrow as pa

    files: dict[int, list[BucketFile]] = {}
    for file in pa.table(delta.get_add_actions(flatten=True)).to_pylist():
        bucket = int(file[f"partition.{BUCKET}"])
        files.setdefault(bucket, []).append(BucketFile(file["path"], file["size_bytes"]))
    return files


def _touched(documents: Sequence[Document], buckets: int) -> dict[int, list[int]]:
    """Return the places of documents by bucket."""
    touched: dict[int, list[int]] = {}
    for index, document in enumerate(documents):
        touched.setdefault(_bucket(document.key, buckets), []).append(index)
    return touched


def _bucket(key: Sequence[str], buckets: int) -> int:
    """Return the bucket of a key, on every machine the same; all shards of a key are in one bucket."""
    return zlib.crc32(key_text(key).encode()) % buckets


def _with_bucket(schema: pa.Schema) -> pa.Schema:
    import pyarrow as pa

    return schema.append(pa.field(BUCKET, pa.int32()))


def _read(paths: Sequence[Path], schema: pa.Schema) -> pa.Table:
    """Read the rows of files; a column that was added later is NULL in older files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = [schema.empty_table()]
    for path in paths:
        table = pq.read_table(path, partitioning=None)
        parts.append(
            pa.table(
                [
                    table[field.name].cast(field.type)
                    if field.name in table.column_names
                    else pa.nulls(table.num_rows, field.type)
                    for field in schema
                ],
                schema=schema,
            )
        )
    return pa.concat_tables(parts)


def _merged(
    old: Sequence[Path], columns: Columns, rows: pa.Table, documents: Sequence[Document], places: Sequence[int]
) -> pa.Table:
    """Return the rows of the files of a bucket, changed by the documents at `places`."""
    import pyarrow as pa

    kept = _read(old, columns.schema())
    names = rows.take(pa.array(places, pa.int64())).select(columns.identity)
    kept = kept.join(names, keys=columns.identity, join_type="left anti")
    added = rows.take(pa.array([index for index in places if documents[index].row is not None], pa.int64()))
    return pa.concat_tables([kept.select(added.column_names), added]).combine_chunks()


def _store(place: Path, rows: pa.Table, table: str, bucket: int) -> NewBucket:
    """Write a new file of a bucket into a folder; none if the bucket has no rows."""
    if not rows.num_rows:
        return NewBucket(table, bucket, None, 0)
    path = place / f"part-{uuid.uuid4()}.parquet"
    write_file(path, rows)
    sync_folder(place)
    return NewBucket(table, bucket, path, rows.num_rows)


def _undo(root: Path, intent: Path) -> None:
    """Remove the files that a commit moved into a table, if it did not take place."""
    try:
        plan = json.loads(intent.read_text(encoding="utf-8"))
        folder, version = root / plan["table"], int(plan["version"])
        files = [str(file) for file in plan["files"]]
    except (OSError, ValueError, KeyError, TypeError):
        # Written incompletely: nothing was moved.
        return
    if folder.parent != root or not all(_NAME.fullmatch(file) for file in files):
        return
    log = folder / "_delta_log"
    commit = log / f"{version + 1:020d}.json"
    later = any(path.name > commit.name for path in log.glob("*.json"))
    text = commit.read_text(encoding="utf-8") if commit.exists() else ""
    for file in files:
        # If the commit of that number does not exist any more, it is not known whether it had the file.
        if Path(file).name not in text and (text or not later):
            (folder / file).unlink(missing_ok=True)
