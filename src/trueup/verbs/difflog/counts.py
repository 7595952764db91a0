"""Counts the rows of the outputs of all steps in one query, so that an output without rows need not be computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from trueup.verbs.difflog.merge import col
from trueup.verbs.difflog.step import StepColumns, is_late, is_unchanged


@dataclass(frozen=True)
class StepCounts:
    """The keys whose state a step changed or did not change, and its late rows (refused ones too, at least)."""

    changed: int
    unchanged: int
    late: int


def count_rows(
    data: DataFrame, steps: Mapping[str, StepColumns], refused: Mapping[str, DataFrame]
) -> dict[str, StepCounts]:
    """Count the rows of all steps of a frame."""
    conditions: list[tuple[str, str, Column]] = []
    for source, step in steps.items():
        conditions += [(source, "changed", col(step.applied)), (source, "unchanged", is_unchanged(step))]
        conditions.append((source, "late", is_late(step)))
    entries = [
        f.struct(f.lit(source).alias("source"), f.lit(kind).alias("kind"), f.count(f.when(condition, 1)).alias("n"))
        for source, kind, condition in conditions
    ]
    parts = [data.agg(f.array(*entries).alias("all")).select(f.explode("all").alias("e")).select("e.*")]
    parts += [
        frame.agg(f.lit(source).alias("source"), f.lit("late").alias("kind"), f.count("*").alias("n"))
        for source, frame in refused.items()
    ]
    totals = {(source, kind): 0 for source, kind, _ in conditions}
    for row in reduce(lambda one, other: one.union(other), parts).collect():
        totals[row["source"], row["kind"]] += row["n"]
    return {
        source: StepCounts(*[totals[source, kind] for kind in ("changed", "unchanged", "late")]) for source in steps
    }


def write_rows(frame: DataFrame, folder: Path, rows: int) -> None:
    """Write a frame as Parquet; if it is known to have no rows, without computing it."""
    if not rows:
        frame = frame.sparkSession.createDataFrame([], frame.schema).coalesce(1)
    frame.write.parquet(str(folder))
