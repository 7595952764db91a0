"""Hand rows that the driver reads to Spark: in batches, so that the memory of the driver is bounded."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BATCH = 50_000


def spooled(session: SparkSession, lines: Iterable[tuple[Any, ...]]) -> DataFrame:
    """Return a frame of encoded keys and rows: columns `k` and `v`."""
    import pyarrow as pa
    from pyspark import StorageLevel

    schema = pa.schema([("k", pa.binary()), ("v", pa.binary())])
    frames: list[DataFrame] = []
    rest = iter(lines)
    while True:
        batch = list(islice(rest, _BATCH))
        if not batch and frames:
            break
        table = pa.table([[line[0] for line in batch], [line[1] for line in batch]], schema=schema)
        frame = session.createDataFrame(table).persist(StorageLevel.DISK_ONLY)
        frame.count()
        frames.append(frame)
        if len(batch) < _BATCH:
            break
    return reduce(lambda one, other: one.unionAll(other), frames)
