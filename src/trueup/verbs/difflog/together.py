"""Writes several outputs of a run with one query per schema: a query costs more than the rows of a small run.

The outputs are parts of a union, and the number of the output is a partition column; each part then gets its own name.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from trueup.engine.bulk_session import changed_settings
from trueup.engine.parquet_files import write_empty
from trueup.verbs.difflog.manifest import Run
from trueup.verbs.difflog.steps.merge import cols

NUMBER = "__trueup_output"
# Spark would sort the rows of each task by output, though a task has rows of few outputs only.
_UNSORTED = {"spark.sql.optimizer.plannedWrite.enabled": "false", "spark.sql.maxConcurrentOutputFileWriters": "100"}


@dataclass(frozen=True)
class Output:
    """An output: its name, its rows, and their number; if it is 0, they are not computed."""

    name: str
    data: DataFrame
    rows: int


def write_together(run: Run, outputs: Sequence[Output]) -> None:
    """Write these outputs; each is complete under its name, or not there."""
    staging = run.path("writing.part")
    shutil.rmtree(staging, ignore_errors=True)
    groups: dict[str, list[int]] = {}
    for number, one in enumerate(outputs):
        if one.rows:
            groups.setdefault(one.data.schema.json(), []).append(number)
    for numbers in groups.values():
        write_group(staging, {number: outputs[number].data for number in numbers})
    for number, one in enumerate(outputs):
        with run.output(one.name) as folder:
            _place(one, staging / f"{NUMBER}={number}", folder)
    shutil.rmtree(staging, ignore_errors=True)


def write_group(staging: Path, frames: Mapping[int, DataFrame]) -> None:
    """Write rows of one schema into the folders of their numbers; a column NUMBER is added to the number."""
    names = [name for name in next(iter(frames.values())).columns if name != NUMBER]
    parts = [frame.select(_number(frame, number), *cols(names)) for number, frame in frames.items()]
    union = reduce(lambda one, other: one.union(other), parts)
    with changed_settings(union.sparkSession, _UNSORTED):
        union.write.mode("append").partitionBy(NUMBER).parquet(str(staging))


def _number(frame: DataFrame, number: int) -> Column:
    return (f.col(NUMBER) + number if NUMBER in frame.columns else f.lit(number)).cast("int").alias(NUMBER)


def _place(output: Output, written: Path, folder: Path) -> None:
    if written.exists():
        os.rename(written, folder)
        (folder / "_SUCCESS").touch()
    else:
        place_empty(folder, output.data)


def place_empty(folder: Path, rows: DataFrame) -> None:
    """Write an output without rows; `rows` has its columns."""
    if not write_empty(folder, rows.schema):
        rows.sparkSession.createDataFrame([], rows.schema).coalesce(1).write.parquet(str(folder))


def link(file: Path, target: Path) -> None:
    """Hard-link a file, or copy it if the file system does not support links."""
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)
