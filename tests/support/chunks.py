"""Chunks of a version log."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_TYPES = {
    "boolean": pa.bool_(), "date": pa.date32(), "double": pa.float64(), "int": pa.int32(), "long": pa.int64(),
    "string": pa.string(), "timestamp": pa.timestamp("us", "UTC"),
}  # fmt: skip
_TYPES |= {f"array<{name}>": pa.list_(element) for name, element in _TYPES.items()}


def write_chunk(folder: Path, rows: Sequence[tuple[Any, ...]], schema: str) -> None:
    """Write rows as one more file, such as Spark writes; a job of Spark would take much longer."""
    names, types = zip(*(column.split() for column in schema.split(", ")), strict=True)
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    arrays = [pa.array(column, _TYPES[kind]) for column, kind in zip(columns, types, strict=True)]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"part-{uuid.uuid4().hex}.snappy.parquet"
    pq.write_table(pa.table(arrays, names=list(names)), path, use_deprecated_int96_timestamps=True)
