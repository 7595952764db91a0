"""Compare the rows of differing blocks on Spark: one aggregation removes equal rows, others are aligned by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from trueup.engine.garbage import freeze_imports
from trueup.nodes.base import Plan
from trueup.nodes.rows import CompareRows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

# The result: the differences, packed; their number; and the encoded keys.
RESULT = "packed binary, found int, keys array<binary>"


class ComparingTask:
    """What a Python worker of Spark runs."""

    def __init__(self, compare: CompareRows) -> None:
        self._compare = compare

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        return self._compare.run(batches)


def differing_rows(frames: Mapping[str, DataFrame], plan: Plan, long_value: int) -> DataFrame:
    """Return the differences between the rows of all nodes, as a frame of the schema RESULT."""
    nodes = tuple(frames)
    all_rows = reduce(
        lambda one, other: one.unionAll(other),
        (frame.select("k", "v", f.lit(number).alias("n")) for number, frame in enumerate(frames.values())),
    )
    counts = [f.sum(f.when(f.col("n") == number, 1).otherwise(0)).alias(f"c{number}") for number in range(len(nodes))]
    counted = all_rows.groupBy("k", "v").agg(*counts)
    first, *others = [f.col(f"c{number}") for number in range(len(nodes))]
    unequal = counted.where(reduce(lambda one, other: one | other, (first != other for other in others)))
    parsed, rules = tuple(zip(*((column.parsed, column.rule) for column in plan.columns), strict=True))
    compare = CompareRows(nodes, plan.kinds, parsed, rules, plan.key, long_value)
    return unequal.repartition("k").sortWithinPartitions("k").mapInArrow(ComparingTask(compare), RESULT)
