"""Documents as Arrow: a column for each of the source's, in a type that holds every value, or as text.

Exact types: integers, floats, boolean and bytea as they are, everything else as PostgreSQL's text; so numeric NaN,
infinite times and json stay what they are. Native types on request: numeric(p,s), dates and times too, and a row with a
value that these cannot hold is refused by name. Columns of the key are integers, or the text that names the row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from trueup.sinks.base import Document, Identity, Mark, SinkRejected, SourceTable
from trueup.sinks.keys import check_known

if TYPE_CHECKING:
    import pyarrow as pa

SHARD, SEQ, AT = "trueup_shard", "trueup_seq", "trueup_at"
_INTEGERS = {"smallint": "int16", "integer": "int32", "bigint": "int64", "oid": "int64"}
_FLOATS = {"real": "float32", "double precision": "float64"}
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:\+00)?)?")
_LARGEST_DECIMAL = 38


@dataclass(frozen=True)
class Columns:
    """The columns of one table; `years` is the range of dates and times that a sink with native types takes."""

    source: SourceTable
    # Whether a document is named by its shard too.
    routed: bool
    native: bool = False
    years: tuple[int, int] = (1, 9999)

    @property
    def identity(self) -> list[str]:
        """What names a document."""
        return [*self.source.key, *([SHARD] if self.routed else [])]

    def names(self) -> list[str]:
        """The source's columns: the key first, and without the marks of a table that is itself a sink."""
        others = [name for name, _ in self.source.columns if not name.startswith("trueup_")]
        return [*self.source.key, *(name for name in others if name not in self.source.key)]

    def schema(self) -> pa.Schema:
        """Their Arrow types, and behind them the marks."""
        import pyarrow as pa

        kinds = dict(self.source.columns)
        fields = [pa.field(name, self._type(kinds[name], name in self.source.key)) for name in self.names()]
        fields += [pa.field(SHARD, pa.int64()), pa.field(SEQ, pa.int64()), pa.field(AT, pa.timestamp("us", "UTC"))]
        return pa.schema(fields)

    def table(self, documents: Sequence[Document], mark: Mark) -> pa.Table:
        """Rows for all documents; of those that are gone, the key alone."""
        import pyarrow as pa

        check_known(self.source, documents)
        schema, kinds = self.schema(), dict(self.source.columns)
        refused: dict[Identity, str] = {}
        arrays = []
        for name in self.names():
            if name in self.source.key:
                at = self.source.key.index(name)
                values: list[Any] = [each.key[at] for each in documents]
                if pa.types.is_integer(schema.field(name).type):
                    values = [int(value) for value in values]
            else:
                values = self._values(name, kinds[name], documents, refused)
            arrays.append(pa.array(values, schema.field(name).type))
        if refused:
            raise SinkRejected("values do not fit into the column's type", reasons=refused)
        arrays += [
            pa.array([each.shard for each in documents], pa.int64()),
            pa.array([mark.seq] * len(documents), pa.int64()),
            pa.array([mark.at] * len(documents), pa.timestamp("us", "UTC")),
        ]
        return pa.Table.from_arrays(arrays, schema=schema)

    def _values(self, name: str, kind: str, documents: Sequence[Document], refused: dict[Identity, str]) -> list[Any]:
        convert = self._convert(kind)
        values: list[Any] = []
        for each in documents:
            value = None if each.row is None else each.row.get(name)
            try:
                values.append(None if value is None else convert(value))
            except ValueError as error:
                refused.setdefault(each.identity, f"column {name}: {error}")
                values.append(None)
        return values

    def _type(self, kind: str, is_key: bool) -> pa.DataType:
        import pyarrow as pa

        if kind in _INTEGERS:
            return pa.type_for_alias(_INTEGERS[kind])
        if is_key:
            return pa.string()
        if kind in _FLOATS:
            return pa.type_for_alias(_FLOATS[kind])
        if kind in ("boolean", "bytea"):
            return pa.bool_() if kind == "boolean" else pa.binary()
        if self.native and kind == "date":
            return pa.date32()
        if self.native and kind.startswith("timestamp "):
            return pa.timestamp("us", "UTC" if kind.endswith("with time zone") else None)
        decimal = _decimal(kind) if self.native else None
        return pa.decimal128(*decimal) if decimal else pa.string()

    def _convert(self, kind: str) -> Callable[[Any], Any]:
        if kind in _INTEGERS:
            return int
        if kind in _FLOATS:
            return float
        if kind == "boolean":
            return bool
        if kind == "bytea":
            return lambda text: bytes.fromhex(text[2:])
        if self.native and (kind == "date" or kind.startswith("timestamp ")):
            return lambda text: self._moment(text, kind)
        decimal = _decimal(kind) if self.native else None
        return (lambda text: _exact_decimal(text, *decimal)) if decimal else _text

    def _moment(self, text: str, kind: str) -> date | datetime:
        found = _TIME.fullmatch(text)
        if not found or not self.years[0] <= int(found[1]) <= self.years[1]:
            raise ValueError(f"{text} is not within the years {self.years[0]} to {self.years[1]}")
        year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
        if kind == "date":
            return date(year, month, day)
        zone = timezone.utc if kind.endswith("with time zone") else None
        return datetime(year, month, day, hour, minute, second, int((found[7] or "0").ljust(6, "0")), zone)


def _decimal(kind: str) -> tuple[int, int] | None:
    found = re.fullmatch(r"numeric\((\d+),(\d+)\)", kind)
    if not found or int(found[1]) > _LARGEST_DECIMAL or int(found[2]) > int(found[1]):
        return None
    return int(found[1]), int(found[2])


def _exact_decimal(text: str, precision: int, scale: int) -> Decimal:
    value = Decimal(text)
    if not value.is_finite():
        raise ValueError(f"{text} is no decimal({precision},{scale})")
    return value


def _text(value: Any) -> str:
    """As PostgreSQL writes it; of a domain over a type that has a form in Python."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)
