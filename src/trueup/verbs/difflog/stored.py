"""Stores the rows of a frame as Parquet files, from which all outputs are computed, and counts them meanwhile."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from trueup.config.files import make_folder
from trueup.engine.bulk_session import changed_settings
from trueup.errors import StoreError
from trueup.verbs.difflog.counts import Counts, aggregates, counts_of
from trueup.verbs.difflog.frame import RunFrame
from trueup.verbs.difflog.steps.merge import col
from trueup.verbs.difflog.steps.step import is_late

# In the work folder, which the executors can reach; a run has the lock of this folder.
_FOLDER = ".frame"
_ROWS_PER_FILE = 500_000
# Read once, and soon: less work for larger files.
_OPTIONS = {"compression": "none", "parquet.enable.dictionary": "false", "maxRecordsPerFile": str(_ROWS_PER_FILE)}
# Arrow reads the default of Spark as nanoseconds without a time zone.
_SETTINGS = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}


@dataclass(frozen=True)
class StoredFrame:
    """A frame whose rows are stored in files, and what was counted."""

    frame: RunFrame
    folder: Path
    counts: Counts

    @property
    def names(self) -> list[str]:
        """The columns, in the order of the files; there they have numbers, because a name may have any character."""
        unused = {step.seen for step in self.frame.steps.values()}
        return [name for name in self.frame.data.columns if name not in unused]

    @property
    def files(self) -> list[Path]:
        """The files with the rows."""
        return sorted((self.folder / "rows").glob("*.parquet"))

    @property
    def rows(self) -> DataFrame:
        """The rows, read from the files."""
        data = self.frame.data
        fields = [data.schema[name] for name in self.names]
        schema = StructType()
        for number, field in enumerate(fields):
            schema = schema.add(_number(number), field.dataType)
        stored = data.sparkSession.read.schema(schema).parquet(str(self.folder / "rows"))
        return stored.select(*[f.col(_number(number)).alias(name) for number, name in enumerate(self.names)])


def discard_frame(work: Path) -> None:
    """Remove the rows of a frame, also those of a run that was killed."""
    shutil.rmtree(work / _FOLDER, ignore_errors=True)


def store_frame(frame: RunFrame, work: Path, more: Mapping[str, Column]) -> StoredFrame:
    """Compute the rows of a frame, store them in the work folder, and count them; `more` are further aggregates."""
    discard_frame(work)
    folder = work / _FOLDER
    make_folder(folder)
    values = aggregates(frame.first, frame.steps, more)
    observed = Observation()
    named = [value.alias(f"v{number}") for number, value in enumerate(values)]
    empty = StoredFrame(frame, folder, Counts())
    late = {step.late: f.when(is_late(step), col(step.late)) for step in frame.steps.values()}
    # An empty list costs as much as a value for each of its columns.
    stored = [late.get(name, col(name)).alias(_number(number)) for number, name in enumerate(empty.names)]
    data = frame.data.observe(observed, *named).select(*stored)
    with changed_settings(data.sparkSession, _SETTINGS):
        data.write.options(**_OPTIONS).parquet(str(folder / "rows"))
    results = observed.get
    counts = counts_of([results[f"v{number}"] for number in range(len(values))], frame.steps, more)
    rows = sum(pq.read_metadata(file).num_rows for file in empty.files)
    if rows != counts.keys:
        raise StoreError(
            f"{folder} contains {rows:,} rows, but {counts.keys:,} were computed: files are missing, or were added",
            cure="run again, with no other program in this folder",
        )
    return StoredFrame(frame, folder, counts)


def _number(number: int) -> str:
    return f"c{number}"
