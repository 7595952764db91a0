"""The ClickHouse table of the log, on a server or in a folder: create, check, insert, query."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
from pyspark.sql.types import DataType, StructType

from trueup.db.clickhouse import Backend, Embedded, Server, identifier, literal, names, parse_url
from trueup.errors import CheckFailed, ConfigError
from trueup.verbs.difflog.model import SIGN, SLOW, VERSION, Target

_SIMPLE = {
    "byte": "Int8",
    "short": "Int16",
    "integer": "Int32",
    "long": "Int64",
    "float": "Float32",
    "double": "Float64",
    "string": "String",
    "varchar": "String",
    "char": "String",
    "binary": "String",
    "boolean": "Bool",
    "date": "Date32",
    "timestamp": "DateTime64(6, 'UTC')",
    "timestamp_ntz": "DateTime64(6, 'UTC')",
}
_KEY_KINDS = {*_SIMPLE, "decimal"} - {"float", "double"}


class ClickHouse:
    """The target table of a log. A context manager, because an embedded folder must be closed."""

    def __init__(self, backend: Backend, database: str, table: str, place: str) -> None:
        self._backend = backend
        self.database, self.table, self.place = database, table, place

    def __repr__(self) -> str:
        return f"<ClickHouse {self.name} on {self.place}>"

    def __enter__(self) -> ClickHouse:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection or the embedded folder."""
        self._backend.close()

    @property
    def name(self) -> str:
        """The quoted name of the table, with its database."""
        return f"{identifier(self.database)}.{identifier(self.table)}"

    @property
    def insert_mark(self) -> str:
        """The prefix of the query ids of our inserts into this table."""
        return f"trueup-difflog:{self.database}.{self.table}:"

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the result of a query as Python values; text that is not UTF-8 is returned as bytes."""
        table = self._backend.arrow(sql)
        columns = [[_decoded(value) for value in column.to_pylist()] for column in table.columns]
        return list(zip(*columns, strict=True)) if table.num_rows else []

    def execute(self, sql: str) -> None:
        """Run a statement without a result."""
        self._backend.execute(sql)

    def export(self, sql: str, path: Path) -> None:
        """Write the result of a query to a Parquet file, as a stream."""
        self._backend.export(sql, path)

    def insert_parquet(self, path: Path) -> None:
        """Insert all rows of a Parquet file with one INSERT, which is atomic; columns are matched by name."""
        if pq.read_metadata(path).num_rows:
            columns = pq.read_schema(path).names
            self._backend.insert(self.name, columns, path, f"{self.insert_mark}{uuid.uuid4()}")

    def columns(self) -> dict[str, str]:
        """Return the columns of the table and their types; empty if the table does not exist."""
        where = f"database = {literal(self.database)} AND table = {literal(self.table)}"
        return dict(self.rows(f"SELECT name, type FROM system.columns WHERE {where} ORDER BY position"))

    def comment(self) -> str:
        """Return the comment of the table; empty if the table does not exist."""
        where = f"database = {literal(self.database)} AND name = {literal(self.table)}"
        return "".join(str(row[0]) for row in self.rows(f"SELECT comment FROM system.tables WHERE {where}"))

    def ensure_table(self, schema: StructType, *, key: Sequence[str], fast_version: str) -> None:
        """Create the table for rows of this schema, or check the existing one and add missing columns."""
        expected = table_columns(schema, key=key, fast_version=fast_version)
        if not self.rows(f"SELECT 1 FROM system.databases WHERE name = {literal(self.database)}"):
            self.execute(f"CREATE DATABASE IF NOT EXISTS {identifier(self.database)}")
        defined = ", ".join(f"{identifier(name)} {kind}" for name, kind in expected.items())
        # A confirmed INSERT survives a power failure.
        self.execute(
            f"CREATE TABLE IF NOT EXISTS {self.name} ({defined})"
            f" ENGINE = VersionedCollapsingMergeTree({SIGN}, {VERSION}) ORDER BY ({names(key)})"
            " SETTINGS fsync_after_insert = 1, fsync_part_directory = 1"
        )
        missing = self._check(expected, key, fast_version)
        for name in missing:
            self.execute(f"ALTER TABLE {self.name} ADD COLUMN IF NOT EXISTS {identifier(name)} {expected[name]}")

    def check_table(self, schema: StructType, *, key: Sequence[str], fast_version: str) -> None:
        """Raise CheckFailed if rows of this schema cannot be stored; the table need not exist."""
        expected = table_columns(schema, key=key, fast_version=fast_version)
        if self.columns():
            self._check(expected, key, fast_version)

    def _check(self, expected: Mapping[str, str], key: Sequence[str], fast_version: str) -> list[str]:
        """Raise CheckFailed for a table that would not collapse correctly; return the missing columns."""
        actual = self.columns()
        where = f"database = {literal(self.database)} AND name = {literal(self.table)}"
        select = "SELECT engine, engine_full, sorting_key, partition_key FROM system.tables"
        engine, full, sorting, partition = self.rows(f"{select} WHERE {where}")[0]
        reasons = []
        if not re.match(rf"\w*VersionedCollapsingMergeTree\((.*?, )?{SIGN}, {VERSION}\)(\s|$)", full):
            reasons.append(f"its engine is {full.partition(' ORDER BY')[0] or engine}")
        elif _bare(sorting) not in self._formatted(names(key), names([*key, VERSION])):
            reasons.append(f"it is sorted by ({sorting}), not by the key ({', '.join(key)})")
        if partition:
            reasons.append(f"it is partitioned by {partition}, and an INSERT into several partitions is not atomic")
        required = [*key, SIGN, SLOW, fast_version, VERSION]
        reasons += [f"it has no column {name}" for name in required if name not in actual]
        real = self.rows(
            f"SELECT {', '.join(f'toTypeName(defaultValueOfTypeName({literal(kind)}))' for kind in expected.values())}"
        )
        for name, kind in zip(expected, real[0], strict=True):
            if name in actual and _bare(actual[name]) != _bare(str(kind)):
                reasons.append(f"its column {name} has the type {actual[name]}, not {kind}")
        if reasons:
            raise CheckFailed(
                [f"table {self.database}.{self.table} cannot store the log: {reason}" for reason in reasons],
                cure=f"name another table: trueup creates it as VersionedCollapsingMergeTree({SIGN}, {VERSION})",
            )
        return [name for name in expected if name not in actual]

    def _formatted(self, *lists: str) -> list[str]:
        """Return lists of columns as ClickHouse formats them."""
        select = ", ".join(f"formatQuerySingleLine({literal('SELECT ' + columns)})" for columns in lists)
        return [_bare(str(text).removeprefix("SELECT ")) for text in self.rows(f"SELECT {select}")[0]]


def table_columns(schema: StructType, *, key: Sequence[str], fast_version: str) -> dict[str, str]:
    """Return the columns of the table and their types for rows of this schema. Raises CheckFailed if it is unusable."""
    kinds = {field.name: field.dataType for field in schema.fields}
    reasons = [
        f"the log has no column {name}" for name in (*key, SIGN, SLOW, fast_version, VERSION) if name not in kinds
    ]
    reasons += [
        f"key column {name} has the type {kinds[name].simpleString()}, which cannot be a key"
        for name in key
        if name in kinds and kinds[name].typeName() not in _KEY_KINDS
    ]
    # ClickHouse treats arrays named a.b and a.c as one Nested column and requires equal lengths.
    dotted = [name.partition(".")[0] for name, kind in kinds.items() if "." in name and kind.typeName() == "array"]
    reasons += [
        f"two array columns are named {prefix}.…, which ClickHouse treats as one Nested column"
        for prefix in sorted({prefix for prefix in dotted if dotted.count(prefix) > 1})
    ]
    if reasons:
        raise CheckFailed(reasons, cure="cast or rename the column in the chunks")
    columns = {name: clickhouse_type(kinds[name], nullable=False) for name in key}
    columns |= {SIGN: "Int8", SLOW: "UInt64", fast_version: "UInt64", VERSION: "UInt64"}
    return columns | {name: clickhouse_type(kind) for name, kind in kinds.items() if name not in columns}


def clickhouse_type(kind: DataType, *, nullable: bool = True) -> str:
    """Return the ClickHouse type of a Spark type. Arrays, maps and structs have no NULL: they become empty."""
    spec: Any = kind
    name = kind.typeName()
    if name == "array":
        return f"Array({clickhouse_type(spec.elementType)})"
    if name == "map":
        return f"Map({clickhouse_type(spec.keyType, nullable=False)}, {clickhouse_type(spec.valueType)})"
    if name == "struct" and spec.fields:
        fields = [f"{identifier(field.name)} {clickhouse_type(field.dataType)}" for field in spec.fields]
        return f"Tuple({', '.join(fields)})"
    plain = f"Decimal({spec.precision}, {spec.scale})" if name == "decimal" else _SIMPLE.get(name)
    if plain is None:
        raise CheckFailed([f"ClickHouse has no type for {kind.simpleString()}"], cure="cast the column in the chunks")
    return f"Nullable({plain})" if nullable else plain


def insert_files(
    house: ClickHouse,
    files: Sequence[Path],
    *,
    key: Sequence[str],
    resumed: bool,
    after: Callable[[Path], None] | None = None,
) -> tuple[int, int]:
    """Insert every file exactly once, in the order of their names. Return the number of inserted and skipped files.

    `resumed` means that an earlier attempt may have inserted some of the files. They must be the same files: files that
    were written again after the first attempt would be inserted twice. `after` is called after each insert.
    """
    # resume imports this module.
    from trueup.verbs.difflog.resume import count_inserted

    filled = [path for path in sorted(files) if pq.read_metadata(path).num_rows]
    done = count_inserted(house, filled, key) if resumed and filled else 0
    for path in filled[done:]:
        house.insert_parquet(path)
        if after:
            after(path)
    return len(filled) - done, done


def open_target(target: Target) -> ClickHouse:
    """Open the target table, on a server or in a folder. Raises ConfigError if the target is incomplete."""
    if bool(target.url) == bool(target.path) or not target.table:
        raise ConfigError(
            "the ClickHouse target needs a table and either a url or a path",
            cure='set table = "…", and url = "clickhouse://user:${CH_PASSWORD}@host:8123/db" or path = "folder"',
        )
    if target.path:
        folder = Path(target.path).absolute()
        return ClickHouse(Embedded(folder), target.database, target.table, str(folder))
    parts = parse_url(target.url)
    in_url = unquote(parts.path.strip("/"))
    database = in_url if in_url and target.database == "default" else target.database
    server = Server(target.url, parts, insecure=target.insecure)
    return ClickHouse(server, database, target.table, f"{parts.hostname}:{parts.port or ''}")


def _bare(kind: str) -> str:
    """Return a type without Nullable and LowCardinality, which do not change its values, and without brackets."""
    return re.sub(r"Nullable|LowCardinality|[()\s]", "", kind)


def _decoded(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, (list, tuple)):
        return type(value)(_decoded(item) for item in value)
    if isinstance(value, dict):
        return {name: _decoded(item) for name, item in value.items()}
    return value
