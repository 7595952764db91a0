"""Chunks of a version log."""

from __future__ import annotations

import json
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

_SPARK_SCHEMA = "org.apache.spark.sql.parquet.row.metadata"


def write_chunk(folder: Path, rows: Sequence[tuple[Any, ...]], schema: str, *, of_spark: bool = True) -> None:
    """Write rows as one more file, such as Spark writes, or another program; a job of Spark would take much longer."""
    names, types = zip(*(column.split() for column in schema.split(", ")), strict=True)
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    arrays = [pa.array(column, _TYPES[kind]) for column, kind in zip(columns, types, strict=True)]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"part-{uuid.uuid4().hex}.snappy.parquet"
    table = pa.table(arrays, names=list(names))
    if of_spark:
        # Spark reads its schema from the footer; otherwise it needs a job to find it.
        fields = [{"name": name, "type": _spark_type(kind), "nullable": True, "metadata": {}}
                  for name, kind in zip(names, types, strict=True)]  # fmt: skip
        table = table.replace_schema_metadata({_SPARK_SCHEMA: json.dumps({"type": "struct", "fields": fields})})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)


def _spark_type(kind: str) -> str | dict[str, Any]:
    if kind.startswith("array<"):
        return {"type": "array", "elementType": _spark_type(kind[6:-1]), "containsNull": True}
    return {"int": "integer"}.get(kind, kind)
