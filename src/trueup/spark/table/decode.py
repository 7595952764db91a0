"""Arrow as it arrives -> Arrow as Spark wants it; what a Spark type cannot hold is an error, or NULL on request."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trueup.errors import TrueupError
from trueup.spark.table.columns import Fetched

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

_DAYS_TO_2000 = 10_957
_DAY = 86_400_000_000
# Spark's dates and times go from the year 1 to 9999; here in days since 2000.
_FIRST_DAY, _LAST_DAY = -730_119, 2_921_939


def arrow_schema(columns: Sequence[Fetched]) -> pa.Schema:
    """The schema that Spark expects of the batches."""
    import pyarrow as pa

    return pa.schema([pa.field(column.name, _arrow_type(column.spark)) for column in columns])


def decode(batch: pa.RecordBatch, columns: Sequence[Fetched], *, unfit: str) -> pa.RecordBatch:
    """One batch: first the columns, then a flag for each array."""
    import pyarrow as pa

    schema = arrow_schema(columns)
    flags = iter(range(len(columns), batch.num_columns))
    arrays = []
    for at, column in enumerate(columns):
        values = batch.column(at)
        bad: Any = None
        if column.kind == "sent":
            values, bad = _sent(values, column)
        elif column.kind == "decimal":
            values, bad = _decimals(values, schema.field(at).type)
        elif column.kind == "array":
            bad = batch.column(next(flags)).to_numpy(zero_copy_only=False)
        arrays.append(_fitting(values, bad, column, unfit).cast(schema.field(at).type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _fitting(values: pa.Array, bad: Any, column: Fetched, unfit: str) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    if bad is None or not bad.any():
        return values
    if unfit == "null":
        return pc.if_else(pa.array(bad), pa.scalar(None, values.type), values)
    raise TrueupError(
        f"column {column.name} holds {_reason(column)}, and {column.spark} of Spark cannot",
        cure=f"read it as text (option as_text={column.name}), or such values as NULL (option unfit=null)",
    )


def _reason(column: Fetched) -> str:
    if column.kind == "array":
        return "an array with more than one dimension, or one that does not begin at 1"
    if column.kind == "decimal":
        return "NaN, an infinity, or a number with more digits"
    return "infinity, or a time outside the years 1 to 9999"


def _sent(values: pa.Array, column: Fetched) -> tuple[pa.Array, np.ndarray[Any, Any]]:
    """The server's bytes of a date (days since 2000) or a time (microseconds since 2000), and what is out of range."""
    import numpy as np
    import pyarrow as pa

    is_date = column.base == "date"
    width, unit = (4, 1) if is_date else (8, _DAY)
    fixed = values.cast(pa.binary(width))
    number = np.frombuffer(fixed.buffers()[1], dtype=f">i{width}")[fixed.offset : fixed.offset + len(fixed)]
    number = number.astype("i8")
    null = fixed.is_null().to_numpy(zero_copy_only=False)
    bad = ~null & ((number < _FIRST_DAY * unit) | (number >= (_LAST_DAY + 1) * unit))
    since_1970 = np.where(null | bad, 0, number) + _DAYS_TO_2000 * unit
    plain = pa.array(since_1970.astype("i4" if is_date else "i8"), mask=null)
    return plain.cast(_arrow_type(column.spark)), bad


def _decimals(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, np.ndarray[Any, Any]]:
    """Numbers as text to decimals, to the last digit, and which of them do not fit."""
    import numpy as np
    import pyarrow as pa

    try:
        return values.cast(kind), np.zeros(len(values), dtype=bool)
    except pa.ArrowInvalid:
        fits = np.array([_fits(value, kind) for value in values])
        kept = pa.array(
            [value.as_py() if good else None for value, good in zip(values, fits, strict=True)], pa.string()
        )
        return kept.cast(kind), ~fits


def _fits(value: pa.Scalar, kind: pa.DataType) -> bool:
    import pyarrow as pa

    try:
        value.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _arrow_type(spark: str) -> pa.DataType:
    import pyarrow as pa

    if found := re.fullmatch(r"decimal\((\d+),(\d+)\)", spark):
        return pa.decimal128(int(found[1]), int(found[2]))
    if found := re.fullmatch(r"array<(.*)>", spark):
        return pa.list_(pa.field("element", _arrow_type(found[1])))
    return {
        "smallint": pa.int16(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
        "string": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }[spark]
