"""Sends the functions of `rows` and `write` to the executors: by value, so that trueup need not be installed there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from trueup.engine.python import use_this_python
from trueup.verbs.difflog.steps import blocks, columns, rows, write
from trueup.verbs.difflog.steps.write import OutputPlan, Written, write_files

_MODULES = (blocks, columns, rows, write)
_WRITTEN = "output string, path string, rows long"


def mapped(
    frame: DataFrame, function: Callable[..., rows.Columns], arguments: Sequence[Any], schema: StructType
) -> DataFrame:
    """Return the rows that a function of `rows` computes from the rows of a frame, as a lazy DataFrame."""
    names = list(frame.columns)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = function(rows.named(batch, names), *arguments)
            yield pa.RecordBatch.from_arrays(list(found.values()), names=list(found))

    _by_value(frame.sparkSession)
    # With other names, because a name may have any character.
    return frame.toDF(*[f"c{number}" for number in range(len(names))]).mapInArrow(task, schema)


def written_by_executors(session: SparkSession, paths: Sequence[str], plan: OutputPlan, folder: str) -> list[Written]:
    """Write the outputs of a run from the files of its frame, one file per task."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers = batch.column(0).to_pylist()
            found = write_files([paths[number] for number in numbers], plan, folder)
            lists = [[one.output for one in found], [one.path for one in found], [one.rows for one in found]]
            kinds = [pa.string(), pa.string(), pa.int64()]
            arrays = [pa.array(values, kind) for values, kind in zip(lists, kinds, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, names=["output", "path", "rows"])

    _by_value(session)
    tasks = session.range(0, len(paths), 1, numPartitions=len(paths)).mapInArrow(task, _WRITTEN)
    return [Written(row["output"], row["path"], row["rows"]) for row in tasks.collect()]


def _by_value(session: SparkSession) -> None:
    use_this_python(session)
    for module in _MODULES:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
