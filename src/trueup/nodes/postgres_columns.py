"""Canonical bytes in PostgreSQL: a row of built-in types, whose binary form `record_send` writes.

No expression calls a cast that the owner of a type made: see `trueup.db.casts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, time
from decimal import Decimal
from typing import Any

from psycopg import sql

from trueup.db.catalog import Column
from trueup.nodes.base import KeyBlocks
from trueup.nodes.key_numbers import text_of_number
from trueup.rows.encode import base_value, column_spec, text_of
from trueup.rows.spec import ColumnSpec, ValueClass
from trueup.rows.types import CLASS_TYPES, JSON_ARRAYS, type_named


def class_of(column: Column) -> ValueClass:
    """Return the class of a column's values; a type without a class of its own is text, as PostgreSQL prints it."""
    return type_named(column.base_schema, column.base_name).value_class


def other_classes(column: Column) -> tuple[ValueClass, ...]:
    """Return other classes as which a column can be read: an array of built-in types is a JSON array as well."""
    return ("json",) if _is_json_array(column_spec(column)) and column.base_schema == "pg_catalog" else ()


def _is_json_array(column: ColumnSpec) -> bool:
    return column.type in JSON_ARRAYS and not column.is_domain


def value(column: ColumnSpec, native: ValueClass, target: ValueClass) -> sql.Composable:
    """Return a column as a value of the type whose binary form is the canonical form of the target class."""
    base = base_value(column)
    if target == "int":
        return sql.SQL("{}::int4::int8" if native == "bool" else "{}::int8").format(base)
    if target == "decimal":
        if native == "decimal":
            return sql.SQL("trim_scale({})::text").format(base)
        return sql.SQL("{}::int4::text" if native == "bool" else "{}::text").format(base)
    if target == "float":
        # Different bits may be the same NaN.
        return sql.SQL("CASE WHEN {base} = 'NaN' THEN 'NaN'::float8 ELSE {base}::float8 END").format(base=base)
    if target == "json" and _is_json_array(column):
        return sql.SQL("to_json({})::text").format(base)
    if native == "char":
        # The cast of char(n) removes trailing blanks.
        return sql.SQL("{}::text").format(base)
    if target == "char":
        return sql.SQL("rtrim({}, ' ')").format(text_of(column))
    if target == "timestamp" and native == "instant":
        return sql.SQL("({} AT TIME ZONE 'UTC')").format(base)
    return text_of(column) if target in ("text", "json") else base


def encoded(values: Sequence[sql.Composable], seed: bytes | None = None) -> sql.Composed:
    """Return values as an encoded row."""
    fields = list(values)
    if seed is not None:
        fields.insert(0, sql.SQL("{}::bytea").format(sql.Literal(f"\\x{seed.hex()}")))
    return sql.SQL("record_send(ROW({}))").format(sql.SQL(", ").join(fields))


def spec_of(column: Column) -> ColumnSpec:
    """Return how a column of the catalog is read."""
    return column_spec(column)


def literal_spec(kind: ValueClass) -> ColumnSpec:
    """Return how the column `value` of a class is read, for a probe."""
    row = CLASS_TYPES[kind]
    return ColumnSpec("value", f'"pg_catalog"."{row.name}"', row.encoding)


def literal(kind: ValueClass, sample: Any) -> sql.Composed:
    """Return a sample of a class as a literal, for a probe."""
    text = None if sample is None else f"\\x{sample.hex()}" if isinstance(sample, bytes) else _text(sample)
    return sql.SQL("{}::{}").format(sql.Literal(text), sql.SQL(f'"pg_catalog"."{CLASS_TYPES[kind].name}"'))


def _text(sample: Any) -> str:
    if isinstance(sample, date | time):
        return sample.isoformat()
    return f"{sample:f}" if isinstance(sample, Decimal) else str(sample)


def block_of(blocks: KeyBlocks, key: sql.Composable) -> sql.Composed:
    """Return the number of the block of a row, of its first key column."""
    # Values that have no number, such as infinite ones, are outside of the ranges.
    return sql.SQL(
        "CASE WHEN {key} < {low} THEN 0 WHEN {key} >= {end} THEN {last}"
        # In quotes: the smallest integer is none without its sign.
        " ELSE (({number} - '{first}'::int8) / {width}::int8)::int4 + 1 END"
    ).format(
        key=key,
        low=key_literal(blocks.kind, blocks.low),
        end=key_literal(blocks.kind, blocks.end),
        last=sql.Literal(blocks.count + 1),
        number=key_number(blocks.kind, key),
        first=sql.SQL(str(blocks.low)),
        width=sql.Literal(blocks.width),
    )


def key_literal(kind: ValueClass, number: int) -> sql.Composable:
    """Return the smallest value of a class with a number."""
    if kind in ("int", "decimal"):
        return sql.Literal(number)
    literal = sql.Literal(text_of_number(kind, number))
    return sql.SQL("{}::{}").format(literal, sql.SQL(f'"pg_catalog"."{CLASS_TYPES[kind].name}"'))


def key_number(kind: ValueClass, key: sql.Composable) -> sql.Composed:
    """Return the number of a value that is not infinite: see `key_numbers`."""
    return sql.SQL(_NUMBERS[kind]).format(key)


# By the binary form, which is exact in all versions of PostgreSQL.
_NUMBERS: dict[ValueClass, str] = {
    "int": "{}::int8",
    "decimal": "floor({})::int8",
    "date": "('x' || encode(date_send({}), 'hex'))::bit(32)::int4::int8",
    "timestamp": "('x' || encode(timestamp_send({}), 'hex'))::bit(64)::int8",
    "instant": "('x' || encode(timestamptz_send({}), 'hex'))::bit(64)::int8",
    "uuid": "(('x' || left(encode(uuid_send({}), 'hex'), 16))::bit(64) >> 1)::int8",
}
