"""Documents as Arrow tables: each source column in a type that stores all its values, or as text.

Exact types: integers, floats, boolean and bytea; everything else is PostgreSQL's text, so that numeric NaN, infinite
times and json are unchanged. Native types on request: also numeric(p,s), dates and times; a row with a value that
these cannot store is refused. Key columns are integers or text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from trueup.rows.types import LARGEST_DECIMAL, arrow_type, decimal_size, type_from_sql
from trueup.sinks.base import Document, Identity, Mark, SinkRejected, SourceTable
from trueup.sinks.keys import check_known

if TYPE_CHECKING:
    import pyarrow as pa

SHARD, SEQ, AT = "trueup_shard", "trueup_seq", "trueup_at"
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:\+00)?)?")


@dataclass(frozen=True)
class Columns:
    """The columns of one table; `years` is the range of dates and times that a sink with native types can store."""

    source: SourceTable
    # Whether the shard is part of the identity of a document.
    routed: bool
    native: bool = False
    years: tuple[int, int] = (1, 9999)

    @property
    def identity(self) -> list[str]:
        """Return the columns that identify a document."""
        return [*self.source.key, *([SHARD] if self.routed else [])]

    def names(self) -> list[str]:
        """Return the source columns: the key first, without the marks of a table that is itself a sink."""
        others = [name for name, _ in self.source.columns if not name.startswith("trueup_")]
        return [*self.source.key, *(name for name in others if name not in self.source.key)]

    def schema(self) -> pa.Schema:
        """Return the Arrow schema of the columns, followed by the marks."""
        import pyarrow as pa

        kinds = dict(self.source.columns)
        fields = [pa.field(name, self._type(kinds[name], name in self.source.key)) for name in self.names()]
        fields += [pa.field(SHARD, pa.int64()), pa.field(SEQ, pa.int64()), pa.field(AT, pa.timestamp("us", "UTC"))]
        return pa.schema(fields)

    def table(self, documents: Sequence[Document], mark: Mark) -> pa.Table:
        """Return the rows of all documents; for a deleted row, the key alone."""
        import pyarrow as pa

        check_known(self.source, documents)
        schema, kinds = self.schema(), dict(self.source.columns)
        refused: dict[Identity, str] = {}
        arrays = []
        for name in self.names():
            if name in self.source.key:
                index = self.source.key.index(name)
                values: list[Any] = [document.key[index] for document in documents]
                if pa.types.is_integer(schema.field(name).type):
                    values = [int(value) for value in values]
            else:
                values = self._values(name, kinds[name], documents, refused)
            arrays.append(pa.array(values, schema.field(name).type))
        if refused:
            raise SinkRejected("values cannot be stored in the type of their column", reasons=refused)
        arrays += [
            pa.array([document.shard for document in documents], pa.int64()),
            pa.array([mark.seq] * len(documents), pa.int64()),
            pa.array([mark.at] * len(documents), pa.timestamp("us", "UTC")),
        ]
        return pa.Table.from_arrays(arrays, schema=schema)

    def _values(self, name: str, kind: str, documents: Sequence[Document], refused: dict[Identity, str]) -> list[Any]:
        convert = self._convert(kind)
        values: list[Any] = []
        for document in documents:
            value = None if document.row is None else document.row.get(name)
            try:
                values.append(None if value is None else convert(value))
            except ValueError as error:
                refused.setdefault(document.identity, f"column {name}: {error}")
                values.append(None)
        return values

    def _type(self, kind: str, is_key: bool) -> pa.DataType:
        arrow = self._arrow(kind)
        return arrow_type("string" if is_key and not arrow.startswith("int") else arrow)

    def _arrow(self, kind: str) -> str:
        """Return the Arrow type of a column that is not part of the key."""
        if self.native and (size := _decimal(kind)):
            return "decimal({},{})".format(*size)
        row = type_from_sql(kind)
        return row.arrow if row.arrow_exact or self.native else "string"

    def _convert(self, kind: str) -> Callable[[Any], Any]:
        arrow = self._arrow(kind)
        if arrow.startswith(("date", "timestamp")):
            return lambda text: self._moment(text, kind)
        if arrow.startswith("decimal"):
            return lambda text: _finite_decimal(text, arrow)
        return _CONVERT[arrow]

    def _moment(self, text: str, kind: str) -> date | datetime:
        match = _TIME.fullmatch(text)
        if not match or not self.years[0] <= int(match[1]) <= self.years[1]:
            raise ValueError(f"{text} is not between the years {self.years[0]} and {self.years[1]}")
        year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
        if kind == "date":
            return date(year, month, day)
        zone = timezone.utc if kind.endswith("with time zone") else None
        return datetime(year, month, day, hour, minute, second, int((match[7] or "0").ljust(6, "0")), zone)


def by_table(batch: Sequence[Document]) -> dict[str, list[Document]]:
    """Return the documents of a batch by table."""
    grouped: dict[str, list[Document]] = {}
    for document in batch:
        grouped.setdefault(document.table, []).append(document)
    return grouped


def _decimal(kind: str) -> tuple[int, int] | None:
    size = decimal_size(kind)
    return size if size and 0 <= size[1] <= size[0] <= LARGEST_DECIMAL else None


def _finite_decimal(text: str, arrow: str) -> Decimal:
    value = Decimal(text)
    if not value.is_finite():
        raise ValueError(f"{text} cannot be stored as {arrow}")
    return value


def _text(value: Any) -> str:
    """Return the text of PostgreSQL; values of a domain may be Python values."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)


# Converts values of documents for Arrow; bytea is hex text.
_CONVERT: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("int16", "int32", "int64"), int),
    **dict.fromkeys(("float32", "float64"), float),
    "bool": bool,
    "binary": lambda text: bytes.fromhex(text[2:]),
    "string": _text,
}
