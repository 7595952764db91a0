"""The ClickHouse table of the log: opened on a server or in a folder, made, checked, filled and read."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from trueup.db.clickhouse import Backend, Embedded, Server, identifier, literal, names, parse_url
from trueup.errors import CheckFailed, ConfigError
from trueup.verbs.difflog.model import SIGN, SLOW, VERSION, Target

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

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
    """The target table of a log; a context manager, for the embedded folder must be given back."""

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
        """Give the connection, or the folder, back."""
        self._backend.close()

    @property
    def name(self) -> str:
        """The table's name, quoted, with its database."""
        return f"{identifier(self.database)}.{identifier(self.table)}"

    @property
    def insert_mark(self) -> str:
        """How the query ids of our inserts into this table begin."""
        return f"trueup-difflog:{self.database}.{self.table}:"

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The answer as typed rows; text that is not UTF-8 stays bytes."""
        table = self._backend.arrow(sql)
        columns = [[_decoded(value) for value in column.to_pylist()] for column in table.columns]
        return list(zip(*columns, strict=True)) if table.num_rows else []

    def execute(self, sql: str) -> None:
        """A statement without an answer."""
        self._backend.execute(sql)

    def export(self, sql: str, path: Path) -> None:
        """The answer as one Parquet file; it never is in memory as a whole."""
        self._backend.export(sql, path)

    def insert_parquet(self, path: Path) -> None:
        """All rows of a Parquet file in one INSERT, one part; columns by name, others of the table by default."""
        import pyarrow.parquet as pq

        if pq.read_metadata(path).num_rows:
            columns = pq.read_schema(path).names
            self._backend.insert(self.name, columns, path, f"{self.insert_mark}{uuid.uuid4()}")

    def columns(self) -> dict[str, str]:
        """The table's columns and their types; empty: there is no such table."""
        where = f"database = {literal(self.database)} AND table = {literal(self.table)}"
        return dict(self.rows(f"SELECT name, type FROM system.columns WHERE {where} ORDER BY position"))

    def ensure_table(self, schema: StructType, *, key: Sequence[str], fast_version: str) -> None:
        """Make the table for rows of this schema, or check the one that is there and add the columns it lacks."""
        wanted = table_columns(schema, key=key, fast_version=fast_version)
        if not self.rows(f"SELECT 1 FROM system.databases WHERE name = {literal(self.database)}"):
            self.execute(f"CREATE DATABASE IF NOT EXISTS {identifier(self.database)}")
        defined = ", ".join(f"{identifier(name)} {kind}" for name, kind in wanted.items())
        # What an INSERT has confirmed survives a loss of power too.
        self.execute(
            f"CREATE TABLE IF NOT EXISTS {self.name} ({defined})"
            f" ENGINE = VersionedCollapsingMergeTree({SIGN}, {VERSION}) ORDER BY ({names(key)})"
            " SETTINGS fsync_after_insert = 1, fsync_part_directory = 1"
        )
        missing = self._check(wanted, key, fast_version)
        for name in missing:
            self.execute(f"ALTER TABLE {self.name} ADD COLUMN IF NOT EXISTS {identifier(name)} {wanted[name]}")

    def _check(self, wanted: Mapping[str, str], key: Sequence[str], fast_version: str) -> list[str]:
        """Refuse a table that would not collapse as ours does; else the columns that it lacks."""
        found = self.columns()
        where = f"database = {literal(self.database)} AND name = {literal(self.table)}"
        select = "SELECT engine, engine_full, sorting_key, partition_key FROM system.tables"
        engine, full, sorting, partition = self.rows(f"{select} WHERE {where}")[0]
        reasons = []
        if not re.match(rf"\w*VersionedCollapsingMergeTree\((.*?, )?{SIGN}, {VERSION}\)(\s|$)", full):
            reasons.append(f"its engine is {full.partition(' ORDER BY')[0] or engine}")
        elif _bare(sorting) not in self._formatted(names(key), names([*key, VERSION])):
            reasons.append(f"it is sorted by ({sorting}), not by the key ({', '.join(key)})")
        if partition:
            reasons.append(f"it is partitioned by {partition}, and an insert into several partitions is not atomic")
        ours = [*key, SIGN, SLOW, fast_version, VERSION]
        reasons += [f"it has no column {name}" for name in ours if name not in found]
        real = self.rows(
            f"SELECT {', '.join(f'toTypeName(defaultValueOfTypeName({literal(kind)}))' for kind in wanted.values())}"
        )
        for name, kind in zip(wanted, real[0], strict=True):
            if name in found and _bare(found[name]) != _bare(str(kind)):
                reasons.append(f"its column {name} is {found[name]}, not {kind}")
        if reasons:
            raise CheckFailed(
                [f"the table {self.database}.{self.table} cannot take the log: {reason}" for reason in reasons],
                cure=f"name another table; trueup makes it: VersionedCollapsingMergeTree({SIGN}, {VERSION})",
            )
        return [name for name in wanted if name not in found]

    def _formatted(self, *lists: str) -> list[str]:
        """Lists of columns as ClickHouse itself would write them."""
        select = ", ".join(f"formatQuerySingleLine({literal('SELECT ' + each)})" for each in lists)
        return [_bare(str(each).removeprefix("SELECT ")) for each in self.rows(f"SELECT {select}")[0]]


def table_columns(schema: StructType, *, key: Sequence[str], fast_version: str) -> dict[str, str]:
    """The columns of the table and their types, for rows of this schema."""
    kinds = {field.name: field.dataType for field in schema.fields}
    reasons = [
        f"the log has no column {name}" for name in (*key, SIGN, SLOW, fast_version, VERSION) if name not in kinds
    ]
    reasons += [
        f"key column {name} has the type {kinds[name].simpleString()}, which cannot be a key"
        for name in key
        if name in kinds and kinds[name].typeName() not in _KEY_KINDS
    ]
    # ClickHouse takes arrays named a.b and a.c for one Nested column, and wants them equally long.
    dotted = [name.partition(".")[0] for name, kind in kinds.items() if "." in name and kind.typeName() == "array"]
    reasons += [
        f"two array columns are named {prefix}.…, which ClickHouse takes for one table inside the table"
        for prefix in sorted({each for each in dotted if dotted.count(each) > 1})
    ]
    if reasons:
        raise CheckFailed(reasons, cure="cast or rename the column where the log is made")
    columns = {name: clickhouse_type(kinds[name], nullable=False) for name in key}
    columns |= {SIGN: "Int8", SLOW: "UInt64", fast_version: "UInt64", VERSION: "UInt64"}
    return columns | {name: clickhouse_type(kind) for name, kind in kinds.items() if name not in columns}


def clickhouse_type(kind: DataType, *, nullable: bool = True) -> str:
    """The ClickHouse type of a Spark type. Arrays, maps and structs are never NULL there: they become empty."""
    spec: Any = kind
    name = kind.typeName()
    if name == "array":
        return f"Array({clickhouse_type(spec.elementType)})"
    if name == "map":
        return f"Map({clickhouse_type(spec.keyType, nullable=False)}, {clickhouse_type(spec.valueType)})"
    if name == "struct" and spec.fields:
        return f"Tuple({', '.join(f'{identifier(one.name)} {clickhouse_type(one.dataType)}' for one in spec.fields)})"
    plain = f"Decimal({spec.precision}, {spec.scale})" if name == "decimal" else _SIMPLE.get(name)
    if plain is None:
        raise CheckFailed(
            [f"ClickHouse has no type for {kind.simpleString()}"], cure="cast the column where the log is made"
        )
    return f"Nullable({plain})" if nullable else plain


def insert_files(
    house: ClickHouse,
    files: Sequence[Path],
    *,
    key: Sequence[str],
    resumed: bool,
    after: Callable[[Path], None] | None = None,
) -> tuple[int, int]:
    """Insert every file exactly once, in the order of their names; how many were inserted, and how many skipped.

    `resumed`: an earlier try with the same files may have been killed. The files must be the very same: whoever writes
    them anew after a first try inserts twice. `after` is told of every file that is in.
    """
    import pyarrow.parquet as pq

    from trueup.verbs.difflog.resume import count_inserted

    filled = [path for path in sorted(files) if pq.read_metadata(path).num_rows]
    done = count_inserted(house, filled, key) if resumed and filled else 0
    for path in filled[done:]:
        house.insert_parquet(path)
        if after:
            after(path)
    return len(filled) - done, done


def open_target(target: Target) -> ClickHouse:
    """Open the target of a log, on its server or in its folder."""
    if bool(target.url) == bool(target.path) or not target.table:
        raise ConfigError(
            "the ClickHouse target needs a table, and either a url or a path",
            cure='set table = "…", and url = "clickhouse://user:${CH_PASSWORD}@host:8123/db" or path = "folder"',
        )
    if target.path:
        folder = Path(target.path).absolute()
        return ClickHouse(Embedded(folder), target.database, target.table, str(folder))
    parts = parse_url(target.url)
    named = unquote(parts.path.strip("/"))
    database = named if named and target.database == "default" else target.database
    return ClickHouse(Server(target.url, parts), database, target.table, f"{parts.hostname}:{parts.port or ''}")


def _bare(kind: str) -> str:
    """A type without what does not change its values (NULL, dictionaries), a list without its brackets."""
    return re.sub(r"Nullable|LowCardinality|[()\s]", "", kind)


def _decoded(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, (list, tuple)):
        return type(value)(_decoded(each) for each in value)
    if isinstance(value, dict):
        return {name: _decoded(each) for name, each in value.items()}
    return value
