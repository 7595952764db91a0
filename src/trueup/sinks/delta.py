"""The sink of Delta tables, which equal their sources after each batch.

A table is split into buckets by a hash of the key. A batch reads the buckets of its keys one by one, rewrites them
without the deleted rows and with the new ones, and replaces their files in one commit. Old files are kept for readers
for some hours. If another writer commits at the same time, the commit fails and the batch is repeated.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote

from trueup.config.files import make_folder, sync_delta_commit, sync_folder
from trueup.errors import CheckFailed
from trueup.sinks.base import Document, Mark, Shards, SinkDown, SourceTable
from trueup.sinks.columns import AT, SEQ, SHARD, Columns
from trueup.sinks.keys import Place, key_text
from trueup.sinks.options import Options
from trueup.sinks.parquet import file_name, older_places, page

if TYPE_CHECKING:
    import pyarrow as pa

BUCKET = "trueup_bucket"
BUCKETS = 16
_CLEAN_EVERY = 50


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
        self._tables: dict[str, tuple[Columns, int]] = {}
        self._page: tuple[tuple[str, int, datetime], list[Place]] | None = None

    def setup(self, tables: Sequence[SourceTable]) -> None:
        """Create the tables, or add missing columns to existing ones."""
        with self._errors():
            made = {source.table: Columns(source, source.routed and self._moves, self._native) for source in tables}
            self._tables = {name: (columns, self._ensure(name, columns)) for name, columns in made.items()}

    def write(self, batch: Sequence[Document], *, mark: Mark) -> None:
        """Write one commit per table; a repeated batch writes the same rows."""
        by_table: dict[str, list[Document]] = {}
        for document in batch:
            by_table.setdefault(document.table, []).append(document)
        # Convert all tables first, so that rows are refused before anything is written.
        rows = {table: self._tables[table][0].table(documents, mark) for table, documents in by_table.items()}
        with self._errors():
            for table, documents in by_table.items():
                self._replace(table, rows[table], documents)

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
        """Free the cached page."""
        self._page = None

    def _replace(self, table: str, rows: pa.Table, documents: Sequence[Document]) -> None:
        """Rewrite the touched buckets and replace their files."""
        import pyarrow as pa
        from deltalake import CommitProperties, Schema
        from deltalake.transaction import RemoveAction

        columns, buckets = self._tables[table]
        delta, folder, now = self._open(table), self._path(table), int(time.time() * 1000)
        version = delta.version()
        files = pa.table(delta.get_add_actions(flatten=True)).to_pylist()
        touched: dict[int, list[int]] = {}
        for index, document in enumerate(documents):
            touched.setdefault(_bucket(document.key, buckets), []).append(index)
        actions: list[Any] = []
        for bucket, places in touched.items():
            old = [file for file in files if int(file[f"partition.{BUCKET}"]) == bucket]
            kept = _read(folder, [file["path"] for file in old], columns.schema())
            names = rows.take(pa.array(places, pa.int64())).select(columns.identity)
            kept = kept.join(names, keys=columns.identity, join_type="left anti")
            added = rows.take(pa.array([index for index in places if documents[index].row is not None], pa.int64()))
            new = pa.concat_tables([kept.select(added.column_names), added])
            if new.num_rows:
                actions.append(_write(folder, new.combine_chunks(), bucket, now))
            actions += [
                RemoveAction(file["path"], True, now, file["size_bytes"], {BUCKET: str(bucket)}) for file in old
            ]
        if not actions:
            return
        delta.create_write_transaction(
            actions,
            mode="append",
            schema=Schema.from_arrow(_with_bucket(columns.schema())),
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


def _bucket(key: Sequence[str], buckets: int) -> int:
    """Return the bucket of a key, on every machine the same; all shards of a key are in one bucket."""
    return zlib.crc32(key_text(key).encode()) % buckets


def _with_bucket(schema: pa.Schema) -> pa.Schema:
    import pyarrow as pa

    return schema.append(pa.field(BUCKET, pa.int32()))


def _read(folder: Path, paths: Sequence[str], schema: pa.Schema) -> pa.Table:
    """Read the rows of files; a column that was added later is NULL in older files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = [schema.empty_table()]
    for path in paths:
        table = pq.read_table(folder / unquote(path), partitioning=None)
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


def _write(folder: Path, rows: pa.Table, bucket: int, now: int) -> Any:
    """Write a new file of a bucket and return its action for the commit."""
    import pyarrow.parquet as pq
    from deltalake.transaction import AddAction

    place = folder / f"{BUCKET}={bucket}"
    make_folder(place)
    path = place / f"part-{uuid.uuid4()}.parquet"
    with path.open("wb") as file:
        pq.write_table(rows, file)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(place)
    stats = json.dumps({"numRecords": rows.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}})
    return AddAction(path.relative_to(folder).as_posix(), path.stat().st_size, {BUCKET: str(bucket)}, now, True, stats)
