"""The table of types: how trueup hashes, fetches, writes and shows the values of each PostgreSQL type.

To add a type, add one row to `_ROWS`; no other module lists types. A type without a row (types of extensions, enums,
composites, ranges) is treated as text: hashed and fetched as its output function prints it, because a cast to text may
be a function of the type's owner. Arrays are hashed as text;
`type_named` derives their Spark type from the row of the element.

The row hash takes the value itself only where equal values have equal representations. All other types enter it as
text, because their own hash ignores something: numeric its scale (and NaN against Infinity), citext the case, an enum
its label, bpchar trailing blanks. The types of 64 bits enter as their eight bytes, because their own hash folds the two
halves together: 1 and 2^32 would have the same hash. Text enters with collation C: under other collations, different
texts may be equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from trueup.rows.spec import ColumnSpec, Encoding, ValueClass

if TYPE_CHECKING:
    import pyarrow as pa

# How a value enters the native row hash: the value, the bytes of `send`, the text with collation C, the text without
# trailing zeros (numeric), the text with its blanks (bpchar), the text.
HashInput = Literal["value", "bytes", "collated", "numeric", "bpchar", "text"]
# How a client fetches a value without loss: the value, cast to int8, the bytes of `send`, the text, an array.
Transfer = Literal["plain", "int8", "bytes", "text", "array"]
# How the text of a value is written into a JSON document: as a string, as a number, as it is.
JsonForm = Literal["string", "number", "document"]

LARGEST_DECIMAL = 38  # digits of a decimal in Spark and Arrow


@dataclass(frozen=True)
class TypeRow:
    """One type of the schema pg_catalog."""

    # As in pg_type, and as format_type prints it without modifiers.
    name: str
    sql_name: str
    # A text that the type accepts; nodes are probed with it, see `probe`. ASCII, because not every encoding has other
    # characters. Empty: not available on every server.
    sample: str
    hash: HashInput = "text"
    # The function that returns the binary form.
    send: str = ""
    # Spark and Arrow types, and whether the Arrow type holds every value of the type.
    spark: str = "string"
    arrow: str = "string"
    arrow_exact: bool = True
    transfer: Transfer = "text"
    # Whether Python and JSON have an equal scalar; infinite and undefined floats aside.
    scalar: bool = False
    json: JsonForm = "string"
    # Whether COPY can transfer the binary form between all servers and versions.
    binary_copy: bool = True
    # Bytes of a signed integer, else 0.
    integer_bytes: int = 0
    # Whether the text needs no quotes inside an array literal.
    unquoted: bool = False
    # Whether a table with such a key may be scanned by pages when its rows are not in key order.
    page_scan: bool = False
    # Of variable length, but never long.
    short: bool = False
    # Whether the hash of the type itself, which may ignore a part of the value, is the same on all servers.
    own_hash: bool = False
    # The class of the values in a comparison with other kinds of nodes, see `canonical`.
    value_class: ValueClass = "text"
    # What `::text` makes of the text that the output function prints; None: there is no cast function to text.
    cast_from_output: Callable[[str], str] | None = None

    @property
    def encoding(self) -> Encoding:
        """How a column of this type is encoded in the row hash."""
        return "native" if self.hash in ("value", "bytes", "collated") else self.hash  # type: ignore[return-value]

    @property
    def is_float(self) -> bool:
        """Whether the type is a binary floating-point number."""
        return self.arrow in ("float32", "float64")

    @property
    def is_python_text(self) -> bool:
        """Whether a tube delivers the value as a Python string."""
        return not self.scalar or self.arrow == "string"


def unchanged(text: str) -> str:
    """Return the text: the cast to text prints what the output function prints."""
    return text


def _bool_text(text: str) -> str:
    return {"t": "true", "f": "false"}.get(text, text)


def _inet_text(text: str) -> str:
    return text if "/" in text else f"{text}/{128 if ':' in text else 32}"


def _integer(name: str, sql_name: str, size: int, spark: str, hash: HashInput, send: str = "") -> TypeRow:
    row = TypeRow(name, sql_name, "-42", hash, send, spark, f"int{8 * size}", **_PLAIN)
    return replace(row, integer_bytes=size, unquoted=True, page_scan=True, value_class="int")


def _moment(
    name: str, sql_name: str, sample: str, hash: HashInput, spark: str, arrow: str, value_class: ValueClass
) -> TypeRow:
    row = TypeRow(name, sql_name, sample, hash, f"{name}_send", spark, arrow, arrow_exact=False, transfer="bytes")
    return replace(row, value_class=value_class)


_PLAIN: Mapping[str, Any] = {"transfer": "plain", "scalar": True}
_UUID = "6f9619ff-8b86-d011-b42d-00cf4fc964ff"
_LOCAL = "timestamp without time zone"
_DAY, _TIME, _UTC = "2024-02-29", "12:34:56.789012", "timestamp[us, tz=UTC]"
_ROWS = (
    _integer("int2", "smallint", 2, "smallint", "value"),
    _integer("int4", "integer", 4, "int", "value"),
    _integer("int8", "bigint", 8, "bigint", "bytes", "int8send"),
    TypeRow(
        *("oid", "oid", "7", "value"),
        spark="bigint",
        arrow="int64",
        transfer="int8",
        scalar=True,
        binary_copy=False,
        value_class="int",
    ),
    TypeRow("float4", "real", "1.1", spark="float", arrow="float32", **_PLAIN, own_hash=True, value_class="float"),
    TypeRow(
        *("float8", "double precision", "1.1"),
        spark="double",
        arrow="float64",
        **_PLAIN,
        own_hash=True,
        value_class="float",
    ),
    # numeric(p,s) is a decimal in Spark and Arrow if it fits, see `decimal_size`.
    TypeRow(
        "numeric", "numeric", "3000.10", "numeric", json="number", short=True, own_hash=True, value_class="decimal"
    ),
    TypeRow(
        *("bool", "boolean", "true", "value", "", "boolean", "bool"),
        **_PLAIN,
        value_class="bool",
        cast_from_output=_bool_text,
    ),
    TypeRow("text", "text", "text", "collated", **_PLAIN, page_scan=True),
    TypeRow("varchar", "character varying", "text", "collated", **_PLAIN, page_scan=True),
    TypeRow("bpchar", "character", "a  ", "bpchar", value_class="char", cast_from_output=unchanged),
    TypeRow("name", "name", "n", binary_copy=False, cast_from_output=unchanged),
    TypeRow("char", '"char"', "c", binary_copy=False, cast_from_output=unchanged),
    TypeRow(
        *("bytea", "bytea", "\\xdeadbeef", "value", "", "binary", "binary"),
        transfer="plain",
        page_scan=True,
        value_class="bytes",
    ),
    TypeRow("uuid", "uuid", _UUID, "value", unquoted=True, page_scan=True, value_class="uuid"),
    _moment("date", "date", _DAY, "value", "date", "date32", "date"),
    _moment("timestamp", _LOCAL, f"{_DAY} {_TIME}", "bytes", "timestamp_ntz", "timestamp[us]", "timestamp"),
    _moment("timestamptz", "timestamp with time zone", f"{_DAY} {_TIME}+00", "bytes", "timestamp", _UTC, "instant"),
    TypeRow("time", "time without time zone", _TIME, "bytes", "time_send", value_class="time"),
    TypeRow("timetz", "time with time zone", "12:00+02"),
    TypeRow("interval", "interval", "1 year 2 mons 3 days 04:05:06.7", own_hash=True),
    TypeRow("json", "json", '{"b": 1.0}', json="document", value_class="json"),
    TypeRow("jsonb", "jsonb", '{"a": [null, "x"], "b": 1.0}', json="document", own_hash=True, value_class="json"),
    TypeRow("xml", "xml", "", binary_copy=False, cast_from_output=unchanged),
    TypeRow("inet", "inet", "10.0.0.1/8", short=True, cast_from_output=_inet_text),
    TypeRow("cidr", "cidr", "10.0.0.0/8", short=True, cast_from_output=unchanged),
)
TYPES = {row.name: row for row in _ROWS}
TEXT_ONLY = TypeRow("", "", "", binary_copy=False)  # a type without a row
_QUOTED = {f'"pg_catalog"."{row.name}"': row for row in _ROWS}
_SQL_NAMES = {row.sql_name: row for row in _ROWS}
# Arrays, quoted and with their schema, whose elements JSON shows without a loss, as other engines do. to_json calls no
# cast that a user has made for them.
JSON_ARRAYS = {
    f'"pg_catalog"."_{row.name}"'
    for row in _ROWS
    if row.integer_bytes
    or row.value_class in ("bool", "decimal", "date", "uuid")
    or row.name in ("text", "varchar", "float8")
}


# The type of each class that holds all its values.
CLASS_TYPES: dict[ValueClass, TypeRow] = {
    row.value_class: row
    for row in _ROWS
    if row.name == row.value_class
    or row.name.removesuffix("8") == row.value_class
    or row.name in ("numeric", "bpchar", "bytea", "timestamptz")
}


def type_named(schema: str, name: str) -> TypeRow:
    """Return the row of a type of pg_type; the row of an array is derived from the row of its element."""
    if schema != "pg_catalog":
        return TEXT_ONLY
    element = TYPES.get(name[1:]) if name.startswith("_") else None
    if element is not None and element.transfer == "plain":
        spark, arrow = f"array<{element.spark}>", f"list<{element.arrow}>"
        return replace(TEXT_ONLY, name=name, transfer="array", spark=spark, arrow=arrow)
    return TYPES.get(name, TEXT_ONLY)


def type_of(column: ColumnSpec) -> TypeRow:
    """Return the row of a compared column's type, below any domain."""
    return _QUOTED.get(column.type, TEXT_ONLY)


def type_from_sql(sql_name: str) -> TypeRow:
    """Return the row of a type as format_type prints it; a domain has none."""
    return TEXT_ONLY if sql_name.endswith("[]") else _SQL_NAMES.get(sql_name.partition("(")[0], TEXT_ONLY)


def decimal_size(sql_name: str) -> tuple[int, int] | None:
    """Return precision and scale of `numeric(p,s)`, or None. Since PostgreSQL 15, s may be negative or more than p."""
    match = re.fullmatch(r"numeric\((\d+),(-?\d+)\)", sql_name)
    return (int(match[1]), int(match[2])) if match else None


def arrow_type(text: str) -> pa.DataType:
    """Return the Arrow type of a row of the table, of `decimal(p,s)`, or of a list."""
    import pyarrow as pa

    if match := re.fullmatch(r"decimal\((\d+),(\d+)\)", text):
        return pa.decimal128(int(match[1]), int(match[2]))
    if match := re.fullmatch(r"list<(.*)>", text):
        return pa.list_(pa.field("element", arrow_type(match[1])))
    if match := re.fullmatch(r"timestamp\[us, tz=(.*)\]", text):
        return pa.timestamp("us", match[1])
    return pa.type_for_alias(text)
