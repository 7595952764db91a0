"""The differences of a report as an Arrow table: one row per difference and pair of nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueup.errors import StoreError
from trueup.report.json_reader import open_report

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH = 10_000


def schema() -> pa.Schema:
    """Return the columns: values of a row by column name, as text; a missing row is NULL."""
    import pyarrow as pa

    row = pa.map_(pa.string(), pa.string())
    names = {"pair": pa.string(), "kind": pa.string(), "hot": pa.bool_(), "key": row}
    return pa.schema({**names, "columns": pa.list_(pa.string()), "left": row, "right": row})


def batches(path: str) -> Iterator[pa.RecordBatch]:
    """Yield the differences of a JSON report, in batches of limited size."""
    import pyarrow as pa

    lines: list[dict[str, Any]] = []
    report = open_report(Path(path))
    for section in report.sections:
        for difference in report.differences(section):
            lines.append(_line(section.pair, difference))
            if len(lines) == _BATCH:
                yield pa.RecordBatch.from_pylist(lines, schema())
                lines = []
    if lines:
        yield pa.RecordBatch.from_pylist(lines, schema())


def write_parquet(path: Path, report: str) -> Path:
    """Write the differences of a JSON report to a Parquet file; raise StoreError if that fails."""
    import pyarrow.parquet as pq

    try:
        with pq.ParquetWriter(path, schema()) as writer:
            for batch in batches(report):
                writer.write_batch(batch)
    except OSError as error:
        reason = f"{path} cannot be written: {error.strerror or error}"
        raise StoreError(reason, cure="check the folder of the reports") from None
    return path


def _line(pair: str, difference: Mapping[str, Any]) -> dict[str, Any]:
    left, right = difference["rows"].values()
    return {
        "pair": pair,
        "kind": difference["kind"],
        "hot": bool(difference.get("hot")),
        "key": list(difference["key"].items()),
        "columns": difference["columns"],
        "left": _row(left),
        "right": _row(right),
    }


def _row(row: Mapping[str, Any] | None) -> list[tuple[str, str | None]] | None:
    if row is None:
        return None
    # A long value is an object with its length and sha256.
    return [(name, json.dumps(value) if isinstance(value, dict) else value) for name, value in row.items()]
