"""What is counted in the frame of a run: in its rows, or for rows that the frame does not have, in the inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as f


@dataclass(frozen=True)
class Counts:
    """The keys of a frame, their updates, and the updates that cannot be used by source, if there are any."""

    keys: int = 0
    updates: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    # Whether an update is late, or has a fast version out of range; the columns with other values out of range.
    has_late: bool = False
    has_wrong_version: bool = False
    wrong_columns: tuple[str, ...] = ()
    # The highest slow version after the run.
    highest_slow: int = 0


def count_refused(refused: Mapping[str, DataFrame]) -> dict[str, int]:
    """Count the rows of these frames in one query."""
    parts = [frame.agg(f.lit(source).alias("source"), f.count("*").alias("n")) for source, frame in refused.items()]
    rows = reduce(lambda one, other: one.union(other), parts).collect() if parts else []
    return {row["source"]: row["n"] for row in rows}
