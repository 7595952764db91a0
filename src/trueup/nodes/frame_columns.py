"""Canonical bytes with Spark's own column functions, for any frame: no Python per row.

All functions need a session with the settings of `engine.bulk_session`: times of UTC, and decimals as plain text.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, MapType, StringType, StructType

from trueup.nodes.base import Blocks, ComparedColumn, HashBlocks, KeyBlocks, Plan
from trueup.rows.canonical import EPOCH_DAYS, EPOCH_MICROS, FORMS, NULL, SEED
from trueup.rows.spec import ValueClass

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructField

_CLASSES: dict[str, ValueClass] = {
    "boolean": "bool",
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), "int"),
    **dict.fromkeys(("float", "double"), "float"),
    "string": "text",
    "binary": "bytes",
    "date": "date",
    "timestamp_ntz": "timestamp",
    "timestamp": "instant",
}
# Parts of nested types that JSON shows without a loss, as other engines do.
_JSON = ("boolean", "tinyint", "smallint", "int", "bigint", "double", "string", "date")


def class_of(field: StructField) -> tuple[ValueClass | None, str]:
    """Return the class of the values of a column, or None and the reason."""
    # A char(n) of a table is a string, which Spark pads; its type is in the metadata.
    name = (field.metadata or {}).get("__CHAR_VARCHAR_TYPE_STRING") or field.dataType.simpleString()
    if name.startswith("decimal("):
        return "decimal", ""
    if name.startswith("varchar("):
        return "text", ""
    if name.startswith("char("):
        return "char", ""
    if name.startswith("string collate"):
        return "text", ""
    if isinstance(field.dataType, ArrayType | MapType | StructType):
        inner = _not_json(field.dataType)
        return (None, f"{inner} in {name} has no exact form in JSON") if inner else ("json", "")
    known = _CLASSES.get(name)
    return known, "" if known else f"values of the type {name} have no canonical form"


def _not_json(kind: DataType) -> str:
    """Return the type of a part of a nested type that has no exact form in JSON, or an empty text."""
    if isinstance(kind, ArrayType):
        return _not_json(kind.elementType)
    if isinstance(kind, MapType):
        return _not_json(kind.valueType) if isinstance(kind.keyType, StringType) else kind.keyType.simpleString()
    if isinstance(kind, StructType):
        return next((inner for field in kind.fields if (inner := _not_json(field.dataType))), "")
    name = kind.simpleString()
    return "" if name in _JSON or name.startswith("decimal(") else name


def value(column: Column, spark_type: DataType, native: ValueClass, target: ValueClass) -> Column:
    """Return a column as canonical bytes of the target class; NULL stays NULL."""
    if target == "char" or native == "char":
        return f.rtrim(column, f.lit(" ")).cast("binary")
    if target == "text" and native != "text":
        return _printed(column, native).cast("binary")
    if target == "decimal":
        return _decimal(column, spark_type, native).cast("binary")
    if target == "int":
        return _int64(column.cast("int").cast("bigint") if native == "bool" else column.cast("bigint"))
    if target == "bytes":
        return column
    if target == "json" and not isinstance(spark_type, StringType):
        # NULL in a document is a value, too.
        return f.to_json(column, {"ignoreNullFields": "false"}).cast("binary")
    data: Column = _VALUES[target](column)
    return data


def _hex(number: Column, digits: int) -> Column:
    """Return a bigint as this many hexadecimal digits, in two's complement."""
    padded = f.lpad(f.hex(number), 16, "0")
    return padded if digits == 16 else f.substring(padded, 17 - digits, digits)


def _int64(number: Column) -> Column:
    return f.unhex(_hex(number, 16))


def _decimal(column: Column, spark_type: DataType, native: ValueClass) -> Column:
    if native == "bool":
        column = column.cast("int")
    text = column.cast("string")
    if native != "decimal" or not getattr(spark_type, "scale", 0):
        return text
    # The text of a decimal with a scale has a point.
    return f.rtrim(f.rtrim(text, f.lit("0")), f.lit("."))


def _printed(column: Column, native: ValueClass) -> Column:
    """Return a value as PostgreSQL prints it, where Spark can."""
    text = column.cast("string")
    return f.concat(text, f.lit("+00")) if native == "instant" else text


def _float64(column: Column) -> Column:
    """Return the IEEE 754 bits of a double. Spark has no function of its own for them, and Java has one NaN."""
    # The function does not accept NULL. Spark evaluates it in projections, where `FrameNode` uses it.
    number = f.coalesce(column.cast("double"), f.lit(0.0))
    bits = f.reflect(f.lit("java.lang.Double"), f.lit("doubleToLongBits"), number).cast("bigint")
    return f.when(column.isNotNull(), _int64(bits))


def _date(column: Column) -> Column:
    return f.unhex(_hex((f.unix_date(column) - EPOCH_DAYS).cast("bigint"), 8))


def _micros(column: Column) -> Column:
    # A time without zone becomes one of the session's zone, UTC.
    return _int64(f.unix_micros(column.cast("timestamp")) - f.lit(EPOCH_MICROS))


_VALUES: dict[ValueClass, Any] = {
    "bool": lambda column: f.when(column.isNull(), f.lit(None)).when(column, f.lit(b"\1")).otherwise(f.lit(b"\0")),
    "float": _float64,
    "text": lambda column: column.cast("binary"),
    "json": lambda column: column.cast("binary"),
    "date": _date,
    "timestamp": _micros,
    "instant": _micros,
}


def row(kinds: Sequence[ValueClass], values: Sequence[Column], seed: bytes | None = None) -> Column:
    """Return canonical values as an encoded row."""
    fields = len(values) + (seed is not None)
    head = fields.to_bytes(4, "big")
    if seed is not None:
        head += SEED.number.to_bytes(4, "big") + len(seed).to_bytes(4, "big") + seed
    parts = [f.lit(head)]
    for kind, data in zip(kinds, values, strict=True):
        form = FORMS[kind]
        number = form.number.to_bytes(4, "big")
        if form.size:
            known = f.concat(f.lit(number + form.size.to_bytes(4, "big")), data)
        else:
            length = f.unhex(_hex(f.octet_length(data).cast("bigint"), 8))
            known = f.concat(f.lit(number), length, data)
        # concat returns NULL if a part is NULL.
        parts.append(f.coalesce(known, f.lit(number + NULL)))
    return f.concat(*parts)


def half(digest: Column, number: int) -> Column:
    """Return the first (0) or second (1) half of an md5 in hexadecimal digits, as a bigint."""
    return f.conv(f.substring(digest, 1 + 16 * number, 16), 16, -10).cast("bigint")


def block_of(blocks: Blocks, plan: Plan, key: Column | None, high: Column) -> Column:
    """Return the number of the block of a row, of its first key column and the first half of its hash."""
    if isinstance(blocks, HashBlocks):
        if not blocks.bits:
            return f.lit(0)
        return f.shiftrightunsigned(high, 64 - blocks.bits).cast("int")
    assert isinstance(blocks, KeyBlocks)
    assert key is not None
    low, end = key_value(blocks.kind, blocks.low), key_value(blocks.kind, blocks.end)
    # Of integers: the operator / divides doubles.
    inside = f.call_function("div", _number(blocks.kind, key) - f.lit(blocks.low), f.lit(blocks.width))
    return f.when(key < low, f.lit(0)).when(key >= end, f.lit(blocks.count + 1)).otherwise(inside.cast("int") + 1)


def key_value(kind: ValueClass, number: int) -> Column:
    """Return the smallest value of a class with a number: see `key_numbers`."""
    if kind == "date":
        return f.date_from_unix_date(f.lit(number + EPOCH_DAYS))
    if kind in ("timestamp", "instant"):
        moment = f.timestamp_micros(f.lit(number + EPOCH_MICROS))
        return moment if kind == "instant" else moment.cast("timestamp_ntz")
    return f.lit(number) if kind == "int" else f.lit(Decimal(number))


def _number(kind: ValueClass, key: Column) -> Column:
    """Return the number of a value."""
    if kind == "date":
        return (f.unix_date(key) - EPOCH_DAYS).cast("bigint")
    if kind in ("timestamp", "instant"):
        return f.unix_micros(key.cast("timestamp")) - f.lit(EPOCH_MICROS)
    return (f.floor(key) if kind == "decimal" else key).cast("bigint")


def column_value(column: ComparedColumn, node: str, source: Column, spark_type: DataType) -> Column:
    """Return a compared column of a frame as canonical bytes."""
    native = column.on[node].kind
    assert native is not None
    return value(source, spark_type, native, column.kind)
