"""How a column is selected, and which Spark type it has: native where driver and Spark are exact, else text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from psycopg import sql

from trueup.rows.encode import column_spec, text_of
from trueup.rows.spec import ColumnSpec

if TYPE_CHECKING:
    from psycopg import sql

    from trueup.db.catalog import Column

# How a value travels: as it is; as text; as a 64-bit integer; as the server's own 4 or 8 bytes, infinity too; as the
# text of a number; as a list.
Kind = Literal["plain", "text", "number", "sent", "decimal", "array"]

_PLAIN = {
    "int2": "smallint",
    "int4": "int",
    "int8": "bigint",
    "float4": "float",
    "float8": "double",
    "bool": "boolean",
    "text": "string",
    "varchar": "string",
    "bytea": "binary",
}
_SENT = {"date": "date", "timestamp": "timestamp_ntz", "timestamptz": "timestamp"}
_LARGEST_DECIMAL = 38


@dataclass(frozen=True)
class Fetched:
    """One column of a read: where it comes from, how it travels, and its Spark type (as Spark writes it)."""

    column: ColumnSpec
    base: str
    kind: Kind
    spark: str

    @property
    def name(self) -> str:
        """The column's name, the same on both sides."""
        return self.column.name

    def selected(self) -> sql.Composable:
        """The expression that is selected."""
        if self.kind in ("text", "decimal"):
            return text_of(self.column)
        name = self._plain_name()
        if self.kind == "number":
            return sql.SQL("{}::int8").format(name)
        return sql.SQL("{}({})").format(sql.SQL(f"{self.base}_send"), name) if self.kind == "sent" else name

    def flag(self) -> sql.Composable:
        """Of an array: whether Spark's could not hold it, for it has one dimension and begins at 1."""
        name = self._plain_name()
        return sql.SQL("coalesce(array_ndims({name}) > 1 OR array_lower({name}, 1) <> 1, false)").format(name=name)

    def _plain_name(self) -> sql.Composable:
        name = sql.Identifier(self.name)
        return sql.SQL("{}::{}").format(name, sql.SQL(self.column.type)) if self.column.is_domain else name


def fetched(column: Column, *, wanted: str | None = None, as_text: bool = False) -> Fetched | None:
    """How to read a column; with `wanted`, as that Spark type: None if it cannot be had without loss."""
    usual = _usual(column)
    if wanted == usual.spark or (wanted is None and not as_text):
        return usual
    if as_text or wanted == "string":
        return Fetched(usual.column, usual.base, "text", "string")
    if usual.base == "numeric" and wanted is not None and wanted.startswith("decimal("):
        return Fetched(usual.column, usual.base, "decimal", wanted)
    return None


def _usual(column: Column) -> Fetched:
    spec = column_spec(column)
    base = column.base_name if column.base_schema == "pg_catalog" else ""
    if base in _PLAIN:
        return Fetched(spec, base, "plain", _PLAIN[base])
    if base in _SENT:
        return Fetched(spec, base, "sent", _SENT[base])
    if base == "oid":
        return Fetched(spec, base, "number", "bigint")
    if base.startswith("_") and base[1:] in _PLAIN:
        return Fetched(spec, base, "array", f"array<{_PLAIN[base[1:]]}>")
    if base == "numeric" and (decimal := _decimal(column.base_type)):
        return Fetched(spec, base, "decimal", decimal)
    return Fetched(spec, base, "text", "string")


def _decimal(base_type: str) -> str | None:
    """The Spark type that holds every value of `numeric(p,s)`; None if there is no limit or no room."""
    found = re.fullmatch(r"numeric\((\d+),(-?\d+)\)", base_type)
    if not found:
        return None
    precision, scale = int(found[1]), int(found[2])
    # Since PostgreSQL 15 the scale may be negative (only hundreds), or more than the precision (0.00123).
    precision, scale = max(precision, scale) - min(scale, 0), max(scale, 0)
    return f"decimal({precision},{scale})" if precision <= _LARGEST_DECIMAL else None
