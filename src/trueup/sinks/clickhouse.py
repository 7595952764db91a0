"""The sink of ClickHouse tables (ReplacingMergeTree), on a server or in the folder of an embedded one.

Every write inserts new versions; a deleted row is a version marked as deleted. `SELECT … FINAL` shows the current
rows. The version continues from the largest one in the table. Numbers of pods cannot be used, because they are not in
the order of writes. A single process writes, in few large inserts, as recommended for ClickHouse.

Tasks of Spark insert the version that the driver chose for the batch: what a task inserts that is still running when
the next batch is written is outdated.
"""

from __future__ import annotations

import logging
import re
import tempfile
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, unquote, urlunsplit

from trueup.config.model import Node
from trueup.db.clickhouse import Backend, Embedded, Server, identifier, literal, names, parse_url
from trueup.db.names import parse_table_name
from trueup.errors import CheckFailed, NodeError, QueryError
from trueup.sinks.base import Document, Mark, Shards, SinkDown, SinkRejected, SourceTable, StoredTable
from trueup.sinks.columns import AT, SEQ, SHARD, Columns, by_table
from trueup.sinks.keys import fixed_shard, key_text
from trueup.sinks.options import Options

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)

OPTIONS = ("table", "types", "moves", "database", "insecure")
VERSION, DELETED = "trueup_version", "trueup_deleted"
# Years that Date32 and DateTime64 can store.
_YEARS = (1900, 2299)
_TYPES = {
    "int16": "Int16",
    "int32": "Int32",
    "int64": "Int64",
    "float": "Float32",
    "double": "Float64",
    "bool": "Bool",
    "string": "String",
    "binary": "String",
    "date32[day]": "Date32",
    "timestamp[us, tz=UTC]": "DateTime64(6, 'UTC')",
    "timestamp[us]": "DateTime64(6, 'UTC')",
}
# Codes of errors caused by values: out of range, NULL, or against a constraint of the table.
_REFUSALS = {6, 26, 27, 32, 33, 38, 41, 53, 69, 70, 72, 131, 321, 349, 407, 469}


class ClickHouseSink:
    """Tables of a ClickHouse server or folder."""

    driver_only: ClassVar[bool] = True

    def __init__(self, place: str, options: Options, *, embedded: bool) -> None:
        self._place = place
        self._embedded = embedded
        named = "" if embedded else unquote(parse_url(place).path.strip("/"))
        self._database = options.text("database", named or "default")
        self._pattern = options.text("table", "{table}")
        self._native = options.choice("types", "exact", "native") == "native"
        self._moves = options.yes_no("moves", True)
        self._insecure = options.yes_no("insecure", False)
        options.end()
        self._tables: dict[str, tuple[str, Columns]] = {}
        self._opened: Backend | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def __repr__(self) -> str:
        return f"<ClickHouse sink, database {self._database}>"

    def setup(self, tables: Sequence[SourceTable]) -> None:
        """Create the tables, or check existing ones and add missing columns."""
        targets: dict[str, tuple[str, Columns]] = {}
        for source in tables:
            schema, table = (part.text for part in parse_table_name(source.table))
            name = self._pattern.format(schema=schema, table=table)
            if name in (target[0] for target in targets.values()):
                raise CheckFailed(
                    [f"several tables of the tube have the target {name}"], cure="use table={schema}_{table}"
                )
            targets[source.table] = name, Columns(source, source.routed and self._moves, self._native, _YEARS)
        self._tables = targets
        with self._errors():
            for name, columns in targets.values():
                self._ensure(name, columns)

    def write(self, batch: Sequence[Document], *, mark: Mark) -> None:
        """Insert once per table, atomically; a repeated batch only adds a version."""
        self.write_version(batch, mark, {})

    def write_version(self, batch: Sequence[Document], mark: Mark, versions: Mapping[str, int]) -> None:
        """Insert once per table, with the version of its table, or with the next one."""
        grouped = by_table(batch)
        rows = {table: self._tables[table][1].table(documents, mark) for table, documents in grouped.items()}
        with self._errors(batch):
            for table, documents in grouped.items():
                version = versions.get(table) or self._next_version(table)
                gone = [document.row is None for document in documents]
                self._insert(self._tables[table][0], rows[table], gone, version)

    def stored(self, source: SourceTable) -> StoredTable:
        """Return the table of a source, whose current rows are read with FINAL."""
        schema, table = (part.text for part in parse_table_name(source.table))
        columns = {name: name for name in Columns(source, False, self._native, _YEARS).names()}
        place = f"chdb:{quote(self._place)}?database={self._database}"
        if not self._embedded:
            place = urlunsplit(parse_url(self._place)._replace(path=f"/{quote(self._database)}"))
        name = self._pattern.format(schema=schema, table=table)
        return StoredTable(Node("sink", place), name, columns, True, source.routed and self._moves)

    def older(
        self,
        table: str,
        shards: Shards,
        start_seq: int,
        started_at: datetime,
        after: tuple[str, ...] | None,
        limit: int,
    ) -> Sequence[tuple[int, tuple[str, ...]]]:
        """Return a page in the order of the key."""
        name, columns = self._tables[table]
        key = columns.source.key
        start_text = started_at.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f")
        where = [f"({SEQ} < {int(start_seq)} OR {AT} < toDateTime64({literal(start_text)}, 6, 'UTC'))"]
        if columns.routed and shards != "all":
            where.append(f"{SHARD} IN ({', '.join(str(int(shard)) for shard in shards) or 'NULL'})")
        if after is not None:
            kinds = columns.schema()
            edge = [
                literal(text) if str(kinds.field(column).type) == "string" else str(int(text))
                for column, text in zip(key, after, strict=True)
            ]
            where.append(f"({names(key)}) > ({', '.join(edge)})")
        query = (
            f"SELECT {SHARD}, {names(key)} FROM {self._name(name)} FINAL WHERE {' AND '.join(where)}"
            f" ORDER BY {names(key)} LIMIT {int(limit)} WITH TIES"
        )
        with self._errors():
            rows = self._rows(query)
        fixed = fixed_shard(shards, routed=columns.routed)
        return [(shard if fixed is None else fixed, tuple(_text(part) for part in parts)) for shard, *parts in rows]

    def close(self) -> None:
        """Close the connection, or release the folder."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _next_version(self, table: str) -> int:
        # At least the clock, because a replica may lag behind.
        largest = self._rows(f"SELECT max({VERSION}) FROM {self._name(self._tables[table][0])}")[0][0] or 0
        return max(int(largest) + 1, time.time_ns())

    def _insert(self, name: str, rows: pa.Table, gone: list[bool], version: int) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = rows.append_column(VERSION, pa.array([version] * rows.num_rows, pa.uint64()))
        rows = rows.append_column(DELETED, pa.array(gone).cast(pa.uint8()))
        # A file without a name: nothing is left of it if the process is killed.
        with tempfile.TemporaryFile(prefix="trueup-sink-") as file:
            pq.write_table(rows, file)
            file.seek(0)
            query_id = f"trueup-tube:{self._database}.{name}:{uuid.uuid4()}"
            self._backend().insert(self._name(name), rows.column_names, Path(f"/dev/fd/{file.fileno()}"), query_id)

    def _ensure(self, name: str, columns: Columns) -> None:
        key = columns.source.key
        column_types = {field.name: _type(field, field.name in (*key, SHARD, SEQ, AT)) for field in columns.schema()}
        column_types |= {VERSION: "UInt64", DELETED: "UInt8"}
        order = columns.identity
        self._backend().execute(f"CREATE DATABASE IF NOT EXISTS {identifier(self._database)}")
        defined = ", ".join(f"{identifier(column)} {kind}" for column, kind in column_types.items())
        # A confirmed insert survives a power failure.
        self._backend().execute(
            f"CREATE TABLE IF NOT EXISTS {self._name(name)} ({defined})"
            f" ENGINE = ReplacingMergeTree({VERSION}, {DELETED}) ORDER BY ({names(order)})"
            " SETTINGS fsync_after_insert = 1, fsync_part_directory = 1"
        )
        for column in self._check(name, column_types, order):
            self._backend().execute(
                f"ALTER TABLE {self._name(name)} ADD COLUMN IF NOT EXISTS {identifier(column)} {column_types[column]}"
            )
            _log.info("column %s was added to the target %s", column, name)

    def _check(self, name: str, column_types: dict[str, str], order: Sequence[str]) -> list[str]:
        """Return the missing columns; raise CheckFailed if the table does not replace rows as required."""
        where = f"database = {literal(self._database)} AND"
        rows = self._rows(f"SELECT name, type FROM system.columns WHERE {where} table = {literal(name)}")
        existing = {_text(column): _text(kind) for column, kind in rows}
        tables = self._rows(
            f"SELECT engine_full, sorting_key, partition_key FROM system.tables WHERE {where} name = {literal(name)}"
        )
        if not tables:
            # The default database of chdb takes names with {} for patterns of files, and creates nothing.
            raise CheckFailed(
                [f"ClickHouse did not create the table {name} in its database {self._database}"],
                cure="use another database (option database=NAME), or another name (option table=NAME)",
            )
        engine, sorting, partition = map(_text, tables[0])
        reasons = []
        if not re.match(rf"\w*ReplacingMergeTree\((.*?, )?{VERSION}, {DELETED}\)(\s|$)", engine):
            reasons.append(f"its engine is {engine.partition(' ORDER BY')[0]}")
        if _bare(sorting) not in (_bare(", ".join(order)), _bare(names(order))):
            reasons.append(f"it is sorted by ({sorting}), not by ({', '.join(order)})")
        if partition:
            reasons.append(f"it is partitioned by {partition}: all versions of a row must be in one partition")
        reasons += [
            f"its column {column} is {existing[column]}, not {kind}"
            for column, kind in column_types.items()
            if column in existing and _bare(existing[column]) != _bare(kind)
        ]
        if reasons:
            raise CheckFailed(
                [f"the table {self._database}.{name} cannot store the rows: {reason}" for reason in reasons],
                cure=f"use another table, which trueup creates: ReplacingMergeTree({VERSION}, {DELETED})",
            )
        return [column for column in column_types if column not in existing]

    def _name(self, table: str) -> str:
        return f"{identifier(self._database)}.{identifier(table)}"

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        table = self._backend().arrow(query)
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True)) if table.num_rows else []

    def _backend(self) -> Backend:
        if self._opened is None:
            self._opened = (
                Embedded(Path(self._place).absolute())
                if self._embedded
                else Server(self._place, parse_url(self._place), insecure=self._insecure)
            )
        return self._opened

    @contextmanager
    def _errors(self, batch: Sequence[Document] = ()) -> Iterator[None]:
        try:
            yield
        except (NodeError, QueryError) as error:
            code = re.search(r"Code: (\d+)", error.message)
            if batch and code and int(code[1]) in _REFUSALS:
                reasons = {batch[0].identity: error.message} if len(batch) == 1 else {}
                raise SinkRejected(error.message, reasons=reasons) from None
            if not self._embedded:
                self.close()
            raise SinkDown(error.message, cure=error.cure) from None


class ClickHouseServerSink(ClickHouseSink):
    """Tables of a server, which tasks of Spark can write too."""

    def begin(self, tables: Sequence[str]) -> ClickHouseWriter:
        """Return the writer of a batch, with the next version of each table."""
        with self._errors():
            return ClickHouseWriter(self, {table: self._next_version(table) for table in tables})

    def part_of(self, table: str, key: tuple[str, ...], parts: int) -> int:
        """Distribute by a hash of the key."""
        return zlib.crc32(key_text(key).encode()) % parts

    def commit(self, results: Sequence[Any]) -> None:
        """Do nothing: every insert is atomic, and a batch that is repeated has a later version."""


class ClickHouseWriter:
    """Inserts the documents of a task through its own copy of the sink."""

    def __init__(self, sink: ClickHouseSink, versions: Mapping[str, int]) -> None:
        self._sink = sink
        self._versions = versions

    def write(self, batch: Sequence[Document], *, mark: Mark) -> None:
        """Insert once per table."""
        self._sink.write_version(batch, mark, self._versions)

    def flush(self) -> None:
        """Do nothing: the documents are in the table."""

    def finish(self) -> Sequence[Any]:
        """Close the connection."""
        self._sink.close()
        return ()


def _type(field: pa.Field, is_ours: bool) -> str:
    import pyarrow as pa

    kind = field.type
    plain = f"Decimal({kind.precision}, {kind.scale})" if pa.types.is_decimal(kind) else _TYPES[str(kind)]
    return plain if is_ours else f"Nullable({plain})"


def _bare(kind: str) -> str:
    """Return a type without Nullable and LowCardinality, or a list without quotes and brackets."""
    return re.sub(r"Nullable|LowCardinality|[()\s`]", "", kind)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
