"""Stores the rows of a frame as Parquet files, from which all outputs are computed, and counts them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from trueup.config.files import make_folder
from trueup.engine.bulk_session import changed_settings
from trueup.verbs.difflog.counts import Counts
from trueup.verbs.difflog.frame import UPDATES, WRONG_VERSION, RunFrame
from trueup.verbs.difflog.steps.merge import col
from trueup.verbs.difflog.steps.step import is_late

# In the work folder, which the executors can reach; a run has the lock of this folder.
_FOLDER = ".frame"
_ROWS_PER_FILE = 500_000
# Read once, and soon: less work for larger files.
_OPTIONS = {"compression": "none", "parquet.enable.dictionary": "false", "maxRecordsPerFile": str(_ROWS_PER_FILE)}
# A session may write dates in the Julian calendar, and times as nanoseconds: Arrow reads the numbers as they are.
_SETTINGS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
}
# Whether a key has a late update; a name for what is counted.
_LATE = "late"


@dataclass(frozen=True)
class StoredFrame:
    """A frame whose rows are stored in files, and what was counted."""

    frame: RunFrame
    folder: Path
    counts: Counts

    @property
    def names(self) -> list[str]:
        """The columns, in the order of the files; there they have numbers, because a name may have any character."""
        return [name for name in self.frame.data.columns if name not in (UPDATES, WRONG_VERSION)]

    @property
    def files(self) -> list[Path]:
        """The files with the rows."""
        return sorted((self.folder / "rows").glob("*.parquet"))

    @property
    def rows(self) -> DataFrame:
        """The rows, read from the files."""
        data, schema = self.frame.data, StructType()
        for number, name in enumerate(self.names):
            schema = schema.add(_number(number), data.schema[name].dataType)
        stored = data.sparkSession.read.schema(schema).parquet(str(self.folder / "rows"))
        return stored.select(*[f.col(_number(number)).alias(name) for number, name in enumerate(self.names)])


def discard_frame(work: Path) -> None:
    """Remove the rows of a frame, also those of a run that was killed."""
    folder = work / _FOLDER
    if folder.is_symlink():
        folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def store_frame(frame: RunFrame, work: Path, wrong: Mapping[str, Column]) -> StoredFrame:
    """Compute the rows of a frame, store them in the work folder, and count them.

    `wrong` are conditions for values out of range, by column.
    """
    make_folder(work / _FOLDER)
    stored = StoredFrame(frame, work / _FOLDER, Counts())
    late = {step.late: f.when(is_late(step), col(step.late)) for step in frame.steps.values()}
    # An empty list costs as much as a value for each of its columns.
    values = [late.get(name, col(name)) for name in stored.names]
    has_late = reduce(lambda one, other: one | other, [is_late(step) for step in frame.steps.values()])
    values += [col(UPDATES), col(WRONG_VERSION), has_late, *wrong.values()]
    data = frame.data.select(*[value.alias(_number(number)) for number, value in enumerate(values)])
    with changed_settings(data.sparkSession, _SETTINGS):
        data.write.options(**_OPTIONS).parquet(str(stored.folder / "rows"))
    return replace(stored, counts=_counts(stored, list(wrong)))


def _counts(stored: StoredFrame, wrong: list[str]) -> Counts:
    """Count the rows in the files: few columns, a part at a time."""
    names = stored.names
    slow, first = _number(names.index(stored.frame.last.slow)), len(names)
    columns = [_number(first + number) for number in range(3 + len(wrong))]
    keys = updates = highest = 0
    found: set[str] = set()
    for path in stored.files:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=[slow, *columns]):
                keys += batch.num_rows
                updates += _number_of(pc.sum(batch.column(columns[0])))
                highest = max(highest, _number_of(pc.max(batch.column(slow))))
                found |= {name for name in columns[1:] if _number_of(pc.sum(batch.column(name)))}
    is_wrong, is_late, *others = columns[1:]
    return Counts(
        keys=keys,
        updates=updates,
        has_late=is_late in found,
        has_wrong_version=is_wrong in found,
        wrong_columns=tuple(name for name, column in zip(wrong, others, strict=True) if column in found),
        highest_slow=highest,
    )


def _number_of(value: pa.Scalar) -> int:
    return int(value.as_py() or 0)


def _number(number: int) -> str:
    return f"c{number}"
