"""Counts the updates and the rows of the steps of a run, in the query that computes the frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from trueup.verbs.difflog.steps.columns import StateColumns, StepColumns
from trueup.verbs.difflog.steps.merge import col
from trueup.verbs.difflog.steps.step import is_late, is_unchanged


@dataclass(frozen=True)
class StepCounts:
    """The keys whose state a step changed or not, and those with late rows; the updates, and their fast versions."""

    changed: int = 0
    unchanged: int = 0
    late: int = 0
    updates: int = 0
    lowest: int | None = None
    highest: int | None = None
    # Updates that cannot be used.
    refused: int = 0


@dataclass(frozen=True)
class Counts:
    """What one query over a frame has counted: its keys, those that have a state, the steps, and values by name."""

    keys: int = 0
    known: int = 0
    steps: Mapping[str, StepCounts] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)


def aggregates(first: StateColumns, steps: Mapping[str, StepColumns], more: Mapping[str, Column]) -> list[Column]:
    """Return what `counts_of` reads, as aggregates over the rows of a frame; `more` are further ones."""
    values: list[Column] = [f.count(f.lit(1)), f.count(col(first.fast))]
    for step in steps.values():
        conditions = (col(step.applied), is_unchanged(step), is_late(step))
        values += [f.count(f.when(condition, 1)) for condition in conditions]
        seen = col(step.seen)
        values += [f.coalesce(f.sum(seen.getField("rows")), f.lit(0))]
        values += [f.min(seen.getField("lowest")), f.max(seen.getField("highest"))]
    return [*values, *more.values()]


def counts_of(values: Iterable[Any], steps: Iterable[str], more: Iterable[str]) -> Counts:
    """Return the counts from the values of these aggregates."""
    found = iter(values)
    keys, known = next(found), next(found)
    counted = {source: StepCounts(*[next(found) for _ in range(6)]) for source in steps}
    return Counts(keys, known, counted, {name: next(found) for name in more})


def count_refused(refused: Mapping[str, DataFrame]) -> dict[str, int]:
    """Count the rows of these frames in one query."""
    parts = [frame.agg(f.lit(source).alias("source"), f.count("*").alias("n")) for source, frame in refused.items()]
    rows = reduce(lambda one, other: one.union(other), parts).collect() if parts else []
    return {row["source"]: row["n"] for row in rows}
