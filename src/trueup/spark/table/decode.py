"""Convert Arrow batches from the driver to the types that Spark expects.

A value that the Spark type cannot represent is an error, or NULL with the option `unfit=null`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from trueup.errors import TrueupError
from trueup.rows.types import arrow_type
from trueup.spark.table.columns import Fetched

if TYPE_CHECKING:
    import numpy as np

_DAYS_TO_2000 = 10_957
_DAY = 86_400_000_000
# The range of Spark's dates and times, years 1 to 9999, in days since 2000.
_FIRST_DAY, _LAST_DAY = -730_119, 2_921_939


def arrow_schema(columns: Sequence[Fetched]) -> pa.Schema:
    """Return the schema that Spark expects of the batches."""
    return pa.schema([pa.field(column.name, arrow_type(column.arrow)) for column in columns])


def decode(batch: pa.RecordBatch, columns: Sequence[Fetched], *, unfit: str) -> pa.RecordBatch:
    """Convert one batch; after the columns it has a flag per array, see `Fetched.misfit`."""
    schema = arrow_schema(columns)
    flags = iter(range(len(columns), batch.num_columns))
    arrays = []
    for number, column in enumerate(columns):
        values = batch.column(number)
        bad: Any = None
        if column.kind == "bytes":
            values, bad = _sent(values, column)
        elif column.kind == "decimal":
            values, bad = _decimals(values, schema.field(number).type)
        elif column.kind == "array":
            bad = batch.column(next(flags)).to_numpy(zero_copy_only=False)
        arrays.append(_fitting(values, bad, column, unfit).cast(schema.field(number).type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _fitting(values: pa.Array, bad: Any, column: Fetched, unfit: str) -> pa.Array:
    if bad is None or not bad.any():
        return values
    if unfit == "null":
        return pc.if_else(pa.array(bad), pa.scalar(None, values.type), values)
    raise TrueupError(
        f"column {column.name} contains {_reason(column)}, which the Spark type {column.spark} cannot represent",
        cure=f"read the column as text (option as_text={column.name}), or read such values as NULL (option unfit=null)",
    )


def _reason(column: Fetched) -> str:
    if column.kind == "array":
        return "an array with more than one dimension, or one that does not start at 1"
    if column.kind == "decimal":
        return "NaN, infinity, or a number with more digits"
    return "infinity, or a time outside the years 1 to 9999"


def _sent(values: pa.Array, column: Fetched) -> tuple[pa.Array, np.ndarray[Any, Any]]:
    """Convert the binary form of dates and times (days or microseconds since 2000); flag those out of range."""
    import numpy as np

    is_date = column.spark == "date"
    width, unit = (4, 1) if is_date else (8, _DAY)
    fixed = values.cast(pa.binary(width))
    number = np.frombuffer(fixed.buffers()[1], dtype=f">i{width}")[fixed.offset : fixed.offset + len(fixed)]
    number = number.astype("i8")
    null = fixed.is_null().to_numpy(zero_copy_only=False)
    bad = ~null & ((number < _FIRST_DAY * unit) | (number >= (_LAST_DAY + 1) * unit))
    since_1970 = np.where(null | bad, 0, number) + _DAYS_TO_2000 * unit
    plain = pa.array(since_1970.astype("i4" if is_date else "i8"), mask=null)
    return plain.cast(arrow_type(column.arrow)), bad


def _decimals(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, np.ndarray[Any, Any]]:
    """Convert the texts of numbers to decimals without rounding; flag those that do not fit."""
    import numpy as np

    try:
        return values.cast(kind), np.zeros(len(values), dtype=bool)
    except pa.ArrowInvalid:
        fits = np.array([_fits(value, kind) for value in values])
        kept = pa.array(
            [value.as_py() if good else None for value, good in zip(values, fits, strict=True)], pa.string()
        )
        return kept.cast(kind), ~fits


def _fits(value: pa.Scalar, kind: pa.DataType) -> bool:
    try:
        value.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True
