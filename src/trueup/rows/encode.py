"""A column as SQL, and its value as Python: what is hashed, what is fetched, and when two values are the same.

A type whose values have exactly one representation each goes into the hash as it is. Every other type goes in as text,
because its own hash forgets something: numeric its scale (and NaN from Infinity), citext its case, an enum its label,
bpchar its blanks. The types of 64 bits go in as their eight bytes: their own hash folds the halves together, so that
1 and 2^32, or (a, b) and (b, a) packed into one number, are the same to it. Text goes in under the collation C: others
may call different texts equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psycopg import sql

from trueup.rows.spec import ColumnSpec, Encoding, KeyOrder, NumericRule, TableSpec

if TYPE_CHECKING:
    from psycopg import sql

    from trueup.db.catalog import Column

NATIVE_TYPES = frozenset(
    [
        "int2",
        "int4",
        "int8",
        "oid",
        "text",
        "varchar",
        "uuid",
        "bool",
        "date",
        "time",
        "timestamp",
        "timestamptz",
        "bytea",
    ]
)
# Types whose own hash knows only 32 of their 64 bits, and the function that gives all of them.
_SENT = {
    '"pg_catalog"."int8"': "int8send",
    '"pg_catalog"."time"': "time_send",
    '"pg_catalog"."timestamp"': "timestamp_send",
    '"pg_catalog"."timestamptz"': "timestamptz_send",
}
_TEXTS = frozenset(['"pg_catalog"."text"', '"pg_catalog"."varchar"'])
# Of varying length, yet never long.
_SHORT_TYPES = frozenset(["numeric", "inet", "cidr"])


@dataclass(frozen=True)
class LongValue:
    """A value too long to carry: its length in bytes, and its sha256."""

    length: int
    sha256: str


Value = str | LongValue | None


def column_spec(column: Column) -> ColumnSpec:
    """How to treat a column of the catalog."""
    is_builtin = column.base_schema == "pg_catalog"
    encoding: Encoding = "text"
    if is_builtin and column.base_name in NATIVE_TYPES:
        encoding = "native"
    elif is_builtin and column.base_name in ("numeric", "bpchar"):
        encoding = "numeric" if column.base_name == "numeric" else "bpchar"
    return ColumnSpec(
        name=column.name,
        type=sql.Identifier(column.base_schema, column.base_name).as_string(None),
        encoding=encoding,
        is_domain=column.is_domain,
        is_bytea=is_builtin and column.base_name == "bytea",
        may_be_long=column.length == -1 and not (is_builtin and column.base_name in _SHORT_TYPES),
    )


def key_order(columns: Sequence[Column]) -> KeyOrder:
    """An enum is ordered as it was created, and other people's types by operators we do not look up."""
    first = columns[0]
    if first.base_kind == "e":
        alike = len({column.labels for column in columns}) == 1 and all(column.nameable for column in columns)
        return "type" if alike else "bytes"
    return "type" if first.base_schema == "pg_catalog" else "bytes"


def hash_input(column: ColumnSpec, spec: TableSpec) -> sql.Composable:
    """The expression that stands for the column inside the row hash."""
    name = sql.Identifier(column.name)
    if column.encoding == "numeric" and spec.numeric == "value":
        text: sql.Composable = sql.SQL("trim_scale({})::text").format(name)
    elif column.encoding == "native" and spec.digest == "native":
        if column.type in _SENT:
            return sql.SQL("{}({})").format(sql.SQL(_SENT[column.type]), name)
        plain = sql.SQL("{}::{}").format(name, sql.SQL(column.type)) if column.is_domain else name
        if column.type not in _TEXTS:
            return plain
        text = plain
    else:
        text = text_of(column)
    return sql.SQL('({}) COLLATE "C"').format(text)


def row_hash(spec: TableSpec) -> sql.Composed:
    """The 64-bit hash of a row, computed by the node."""
    inputs = sql.SQL(", ").join(hash_input(column, spec) for column in spec.columns)
    seed = sql.Literal(spec.seed)
    if spec.digest == "portable":
        # The text of a record quotes its fields, so no two different rows share it.
        return sql.SQL("('x' || substr(md5(ROW({})::text || {}), 1, 16))::bit(64)::int8").format(
            inputs, sql.Literal(str(spec.seed))
        )
    # The record hash is linear in its columns: without the outer hash two rows could swap a value unseen. It takes the
    # number as text, for the hash of an integer would leave 32 of its 64 bits.
    return sql.SQL('hashtextextended((hash_record_extended(ROW({}), {})::text) COLLATE "C", {})').format(
        inputs, seed, seed
    )


def text_of(column: ColumnSpec) -> sql.Composed:
    """The value as text, to the letter."""
    name = sql.Identifier(column.name)
    if column.encoding == "bpchar":
        # The cast to text would drop trailing blanks.
        return sql.SQL("textin(bpcharout({}))").format(name)
    return sql.SQL("{}::text").format(name)


def value_of(column: ColumnSpec, spec: TableSpec) -> sql.Composed:
    """The value as fetched: text, or for what may be long a marked text (`v…` the value, `h…` length and sha256)."""
    text = text_of(column)
    if not column.may_be_long:
        return text
    name = sql.Identifier(column.name)
    length = sql.SQL("octet_length({})").format(name if column.is_bytea else text)
    content = name if column.is_bytea else sql.SQL("convert_to({}, 'UTF8')").format(text)
    return sql.SQL(
        "CASE WHEN {length} > {limit} THEN 'h' || {length} || ':' || encode(sha256({content}), 'hex')"
        " ELSE 'v' || {text} END"
    ).format(length=length, limit=sql.Literal(spec.long_value), content=content, text=text)


def decode(column: ColumnSpec, fetched: str | None) -> Value:
    """What `value_of` fetched, as a value."""
    if fetched is None or not column.may_be_long:
        return fetched
    if fetched[0] == "v":
        return fetched[1:]
    length, _, digest = fetched[1:].partition(":")
    return LongValue(int(length), digest)


def same(column: ColumnSpec, left: Value, right: Value, numeric: NumericRule) -> bool:
    """Whether two fetched values are equal in the sense of the row hash."""
    if left == right:
        return True
    if column.encoding != "numeric" or numeric != "value":
        return False
    return isinstance(left, str) and isinstance(right, str) and trim_scale(left) == trim_scale(right)


def trim_scale(number: str) -> str:
    """A number's text without the zeros that only say how many decimals it was written with."""
    return number.rstrip("0").rstrip(".") if "." in number else number
