"""A ClickHouse table as a node, on a server or in the folder of an embedded ClickHouse."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from trueup.config.model import Node
from trueup.db.clickhouse import Backend, Embedded, Server, identifier, literal, names, parse_url
from trueup.errors import CheckFailed, TrueupError
from trueup.nodes.base import Moment, NodeColumn, NodeTable
from trueup.nodes.databases.sql import Dialect, SqlNode, text
from trueup.rows.canonical import EPOCH_DAYS, EPOCH_MICROS, NAN
from trueup.rows.spec import ValueClass

_INT = re.compile(r"U?Int(8|16|32|64|128|256)")
_MICROS = 6
_NESTED = re.compile(r"Array\(|Map\((LowCardinality\()?String")
# Parts of nested types that JSON shows without a loss, as other engines do.
_JSON = (
    *("Array", "Map", "Nullable", "LowCardinality", "Bool", "String", "Decimal", "Float64", "Date", "Date32", "UUID"),
    *(f"{sign}Int{size}" for sign in ("", "U") for size in (8, 16, 32, 64)),
)
# Engines that keep old versions of rows until they are merged.
_VERSIONED = re.compile(r"(Replicated|Shared)?(Replacing|Collapsing|VersionedCollapsing|Summing|Aggregating)MergeTree")


def class_of(type_name: str) -> tuple[ValueClass | None, tuple[ValueClass, ...], str]:
    """Return the class of the values of a type, other classes as which they can be read, or the reason for none."""
    bare = bare_type(type_name)
    if bare == "Bool":
        return "bool", (), ""
    if match := _INT.fullmatch(bare):
        # Larger than 64 bits with a sign: exact as a decimal.
        return ("decimal" if int(match[1]) > 64 or bare == "UInt64" else "int"), (), ""
    if bare.startswith("Decimal"):
        return "decimal", (), ""
    if bare in ("Float32", "Float64"):
        return "float", (), ""
    if bare == "String" or bare.startswith("Enum"):
        return "text", ("bytes",) if bare == "String" else (), ""
    if bare.startswith("FixedString("):
        return "bytes", ("text",), ""
    if bare in ("Date", "Date32"):
        return "date", (), ""
    if bare == "UUID":
        return "uuid", (), ""
    if bare.startswith("DateTime"):
        if (match := re.match(r"DateTime64\((\d)", bare)) and int(match[1]) > _MICROS:
            return None, (), f"values of the type {type_name} are finer than microseconds"
        # Without a zone of its own, a column prints times of the server's zone; both are points in time.
        return "instant", ("timestamp",) if "'UTC'" in bare else (), ""
    if _NESTED.match(bare):
        # All names of types and of fields of the nested type.
        inner = [one for one in re.findall(r"[A-Za-z]\w*(?=[(),]|$)", bare) if one not in _JSON]
        if not inner and not bare.startswith("Tuple"):
            return "json", (), ""
    return None, (), f"values of the type {type_name} have no canonical form"


def bare_type(type_name: str) -> str:
    """Return a type without Nullable and LowCardinality."""
    while match := re.fullmatch(r"(?:Nullable|LowCardinality)\((.*)\)", type_name):
        type_name = match[1]
    return type_name


class ClickHouseDialect(Dialect):
    """Expressions of ClickHouse, in which a string is a string of bytes."""

    def name(self, text: str) -> str:
        return identifier(text)

    def constant(self, data: bytes) -> str:
        return f"unhex('{data.hex()}')"

    def concat(self, parts: Sequence[str]) -> str:
        return f"concat({', '.join(parts)})" if len(parts) > 1 else parts[0]

    def length(self, data: str) -> str:
        return self._number(f"toUInt32(length({data}))", 8)

    def _number(self, number: str, digits: int) -> str:
        return f"unhex(leftPad(hex({number}), {digits}, '0'))"

    def value(self, source: str, native: ValueClass, target: ValueClass, type_name: str) -> str:
        if target == "bool":
            return self._number(f"toUInt8({source})", 2)
        if target == "int":
            return self._number(f"toInt64({source})", 16)
        if target == "decimal":
            number = f"toUInt8({source})" if native == "bool" else source
            printed = f"toString({number})"
            return f"replaceRegexpOne({printed}, '(\\\\.[0-9]*[1-9])0+$|\\\\.0*$', '\\\\1')"
        if target == "float":
            number = f"toFloat64({source})"
            bits = self._number(f"reinterpretAsUInt64({number})", 16)
            return f"if(isNaN({number}), {self.constant(NAN)}, {bits})"
        if target == "date":
            return self._number(f"toInt32({self.number(source, target, type_name)})", 8)
        if target in ("timestamp", "instant"):
            return self._number(f"toInt64({self.number(source, target, type_name)})", 16)
        if target == "uuid":
            return f"unhex(replaceAll(toString({source}), '-', ''))"
        if target == "char":
            return f"trim(TRAILING ' ' FROM toString({source}))"
        if target == "text":
            return self._printed(source, native)
        if target == "json" and bare_type(type_name).startswith(("Array", "Map")):
            return f"toJSONString({source})"
        return source

    def _printed(self, source: str, native: ValueClass) -> str:
        if native == "bool":
            # A condition that is NULL selects the second value.
            return f"if(isNull({source}), NULL, if({source}, 'true', 'false'))"
        if native in ("timestamp", "instant"):
            printed = f"toString(toDateTime64({source}, 6, 'UTC'))"
            short = f"replaceRegexpOne({printed}, '\\\\.?0+$', '')"
            return f"concat({short}, '+00')" if native == "instant" else short
        return f"toString({source})"

    def number(self, source: str, kind: ValueClass, type_name: str) -> str:
        if kind == "decimal":
            bare = bare_type(type_name)
            if bare.startswith("Decimal"):
                return f"toInt256(floor({source}))"
            # Larger numbers have no sign in common with smaller ones; all of them are after the last block.
            return f"toInt256(least({source}, toUInt256({10**30})))" if bare == "UInt256" else f"toInt256({source})"
        if kind == "date":
            return f"(toInt32(toDate32({source})) - {EPOCH_DAYS})"
        if kind in ("timestamp", "instant"):
            return f"(toUnixTimestamp64Micro(toDateTime64({source}, 6, 'UTC')) - {EPOCH_MICROS})"
        if kind == "uuid":
            # By its digits: ClickHouse orders values by their second half first.
            digits = f"substring(replaceAll(toString({source}), '-', ''), 1, 16)"
            return f"bitShiftRight(reinterpretAsUInt64(reverse(unhex({digits}))), 1)"
        return source

    def literal(self, kind: ValueClass, sample: Any) -> tuple[str, str]:
        type_name = _LITERALS[kind]
        nullable = f"Nullable({type_name})"
        if sample is None:
            return f"CAST(NULL AS {nullable})", nullable
        if kind in ("date", "timestamp", "instant") and not _FIRST_YEAR <= sample.year <= _LAST_YEAR:
            raise KeyError(kind)
        return f"CAST({self._constant(sample)} AS {nullable})", nullable

    def _constant(self, sample: Any) -> str:
        if isinstance(sample, bool):
            return str(sample).lower()
        if isinstance(sample, datetime):
            return literal(sample.strftime("%Y-%m-%d %H:%M:%S.%f"))
        if isinstance(sample, date):
            return literal(sample.isoformat())
        if isinstance(sample, float):
            return f"toFloat64({literal(repr(sample))})"
        if isinstance(sample, Decimal):
            return literal(f"{sample:f}")
        return str(sample) if isinstance(sample, int) else literal(sample)

    def md5(self, data: str) -> str:
        return f"lower(hex(MD5({data})))"

    def half(self, digest: str, number: int) -> str:
        return f"reinterpretAsUInt64(reverse(unhex(substring({digest}, {1 + 16 * number}, 16))))"

    def divided(self, number: str, by: int) -> str:
        # A block has a small number, and Arrow has none of 256 bits.
        return f"toInt64(intDiv({number}, {by}))"


_FIRST_YEAR, _LAST_YEAR = 1900, 2299
_LITERALS: dict[ValueClass, str] = {
    "bool": "Bool",
    "int": "Int64",
    "decimal": "Decimal(38, 10)",
    "float": "Float64",
    "text": "String",
    "char": "String",
    "bytes": "String",
    "date": "Date32",
    "timestamp": "DateTime64(6, 'UTC')",
    "instant": "DateTime64(6, 'UTC')",
    "uuid": "UUID",
    "json": "String",
}


class ClickHouseNode(SqlNode):
    """A table of ClickHouse; of engines that keep old versions of rows, the current ones (`FINAL`)."""

    dialect = ClickHouseDialect()
    blocks_per_statement = 100

    def __init__(
        self,
        node: Node,
        table: str,
        filter: str,
        backend: Backend,
        database: str,
        expressions: Mapping[str, str],
    ) -> None:
        super().__init__(node.name, filter)
        self.kind = node.kind
        self._table = table
        self._database = database
        self._backend = backend
        self._final = ""
        self._expressions = expressions
        self._own: list[str] = []

    @property
    def source(self) -> str:
        """The table, with FINAL if its engine keeps old versions, and with the expressions as columns."""
        table = f"{identifier(self._database)}.{identifier(self._table)}{self._final}"
        if not self._expressions:
            return table
        # A column of the same name is replaced: in an expression, the name is the column.
        replaced = [name for name in self._expressions if name in self._own]
        kept = f"* EXCEPT ({names(replaced)})" if replaced else "*"
        made = ", ".join(f"(\n{text}\n) AS {identifier(name)}" for name, text in self._expressions.items())
        settings = "SETTINGS prefer_column_name_to_alias = 1"
        return f"(SELECT {kept}, {made} FROM {table} {settings}) AS trueup_source"

    def describe(self) -> NodeTable:
        """Return columns and the sorting key, which is unique only for engines that replace rows."""
        where = f"database = {literal(self._database)} AND"
        tables = list(
            self.query(f"SELECT engine, total_rows FROM system.tables WHERE {where} name = {literal(self._table)}")
        )
        if not tables:
            reason = f"node {self.name}: there is no table {self._table} in the database {self._database}"
            raise CheckFailed([reason], cure="name a table that exists on all nodes")
        engine, rows = text(tables[0][0]), tables[0][1]
        self._final = " FINAL" if _VERSIONED.fullmatch(engine) else ""
        described = []
        listed = f"SELECT name, type FROM system.columns WHERE {where} table = {literal(self._table)}"
        # An EPHEMERAL column has no values.
        listed += " AND default_kind != 'EPHEMERAL' ORDER BY position"
        self._own = [text(name) for name, _ in self.query(listed)]
        for name, type_name, *_ in self.query(f"DESCRIBE {self.source}" if self._expressions else listed):
            kind, also, why = class_of(text(type_name))
            described.append(NodeColumn(text(name), text(type_name), kind, why, also))
        return NodeTable(f"{self._database}.{self._table}", tuple(described), rows=None if rows is None else int(rows))

    def begin(self) -> Moment:
        """Return that ClickHouse has no snapshots: each statement reads the parts of its time."""
        version = text(next(self.query("SELECT version()"))[0])
        return Moment(self.name, self.kind, held=False, facts={"server_version": version, "final": bool(self._final)})

    def query(self, sql: str, *, fresh: bool = False) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query."""
        with _named(self.name):
            table = self._backend.arrow(sql)
        columns = [column.to_pylist() for column in table.columns]
        yield from zip(*columns, strict=True)

    def stop(self) -> None:
        """Do nothing: a statement of ClickHouse ends when its client closes the connection."""

    def end(self) -> None:
        """Do nothing: there is no snapshot."""

    def close(self) -> None:
        """Close the connection, or release the folder."""
        self._backend.close()


@contextmanager
def _named(node: str) -> Iterator[None]:
    """Errors of the block name the node."""
    try:
        yield
    except TrueupError as error:
        error.node = error.node or node
        raise


def open_clickhouse(node: Node, table: str, filter: str, expressions: Mapping[str, str]) -> ClickHouseNode:
    """Return the node of an address `clickhouse://host:8123/db` or `chdb:FOLDER?database=NAME`."""
    name = table.rpartition(".")[2]
    if node.kind == "chdb":
        folder, _, options = node.conninfo.removeprefix("chdb:").partition("?")
        database = dict(part.split("=", 1) for part in options.split("&") if "=" in part).get("database", "default")
        with _named(node.name):
            backend: Backend = Embedded(Path(unquote(folder)).absolute())
        return ClickHouseNode(node, name, filter, backend, database, expressions)
    with _named(node.name):
        url = parse_url(node.conninfo)
        database = unquote(url.path.strip("/")) or "default"
        backend = Server(node.conninfo, url, insecure=False)
    return ClickHouseNode(node, name, filter, backend, database, expressions)
