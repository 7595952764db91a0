"""The inputs of a run: chunk sets, each a folder with one Parquet folder for the visits and one per side log."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from trueup.config.files import make_folder, rename_folder
from trueup.engine.parquet_files import reader_of
from trueup.errors import CheckFailed
from trueup.verbs.difflog.model import FOLDERS_OF_JOIN, REJOINED, DiffLogConfig
from trueup.verbs.difflog.steps.merge import col

# The files that a join has read, so that no file is joined twice.
JOIN_FILE = "join.json"
OF_JOIN = (JOIN_FILE, *FOLDERS_OF_JOIN)
# The folders that later joins read.
KEPT = ("pending", "applied")
# A new Java needs less processor time without its optimizing compiler up to here: 14 s instead of 29 s for one row, and
# 64 s instead of 80 s for a million rows of 5 MB.
SMALL_BYTES = 4_000_000
INTEGERS = ("tinyint", "smallint", "int", "bigint")


def chunk_folder(work: Path) -> Path:
    """Return the folder of the chunk sets."""
    return work / "chunks"


def chunk_sets(work: Path) -> list[str]:
    """Return the complete chunk sets, in the order of their names."""
    return sorted(
        path.name
        for path in chunk_folder(work).glob("*")
        if path.is_dir() and not path.name.startswith(".") and not path.name.endswith(".part")
    )


def stray_files(work: Path) -> list[Path]:
    """Return files beside the chunk sets: they belong to no set, and no run reads them."""
    entries = sorted(chunk_folder(work).glob("*"))
    return [path for path in entries if not path.is_dir() and path.name[0] not in "._"]


def waiting_chunks(work: Path, taken: set[str]) -> list[str]:
    """Return the chunk sets that no run has started to process, in the order of their names."""
    return [name for name in chunk_sets(work) if name not in taken]


def write_set(work: Path, taken: set[str], inputs: Sequence[str], outputs: Mapping[str, DataFrame]) -> str:
    """Write a new chunk set with its pending rows, completely or not at all, and return its name."""
    # Also the names that runs have processed: a new set of such a name would not be processed.
    numbers = [int(name) for name in (*chunk_sets(work), *taken) if name.isdigit()]
    name = f"{max(numbers, default=0) + 1:06d}"
    part = chunk_folder(work) / f"{name}.part"
    shutil.rmtree(part, ignore_errors=True)
    make_folder(chunk_folder(work))
    for folder, frame in outputs.items():
        frame.write.parquet(str(part / folder))
    # What later joins need of this set: without it, rows would be lost or count twice.
    kept = sorted(str(path.relative_to(part)) for kind in KEPT for path in (part / kind).rglob("*.parquet"))
    noted = json.dumps({"files": list(inputs), "kept": kept}, indent=1)
    (part / JOIN_FILE).write_text(noted, encoding="utf-8")
    rename_folder(part, chunk_folder(work) / name)
    return name


def joined_sets(work: Path, names: Sequence[str]) -> list[str]:
    """Return those of these chunk sets that a join has written."""
    return [name for name in names if (chunk_folder(work) / name / JOIN_FILE).exists()]


def sources(difflog: DiffLogConfig) -> list[str]:
    """Return the entity, then the side logs in the order in which they are applied."""
    return [difflog.entity.name, *[log.name for log in difflog.logs]]


def read_source(
    session: SparkSession, difflog: DiffLogConfig, work: Path, names: Sequence[str], source: str
) -> DataFrame | None:
    """Read the rows of one source from all chunk sets of a run; None if no set has a file of it."""
    files = source_files(work, names, source)
    if not files:
        return None
    paths = [str(folder) for folder in dict.fromkeys(file.parent for file in files)]
    # Later chunks may have more columns.
    frame: DataFrame = reader_of(session, files).parquet(*paths)
    return frame


def source_files(work: Path, names: Sequence[str], source: str) -> list[Path]:
    """Return the files of one source in these chunk sets."""
    return [file for name in names for file in sorted((chunk_folder(work) / name / source).glob("*.parquet"))]


def is_small(files: Iterable[Path], most: int | None = None) -> bool:
    """Return whether these Parquet files have few bytes: a new Java that compiles less needs less time for them."""
    rest = SMALL_BYTES if most is None else most
    try:
        for file in files:
            rest -= file.stat().st_size
            if rest < 0:
                return False
    except OSError:
        # The command reports a file that it cannot read.
        return False
    return True


def row_count(difflog: DiffLogConfig, facts: Mapping[str, Any]) -> int:
    """Return the rows that a run with these facts reads, from the footers of their files."""
    work = Path(difflog.work)
    files = [file for source in sources(difflog) for file in source_files(work, facts["chunks"], source)]
    for number in facts["late_from"]:
        files += (work / "runs" / f"{number:06d}" / "late").rglob("*.parquet")
    return sum(pq.read_metadata(file).num_rows for file in files)


def typed_keys(
    difflog: DiffLogConfig, frames: Mapping[str, DataFrame], state: StructType | None
) -> dict[str, DataFrame]:
    """Return the frames with the key types of the state: its buckets depend on the type.

    Before the first run, the widest integer type of a key column is used. Raises CheckFailed for any other difference.
    """
    wrong, typed = [], dict(frames)
    for name in difflog.entity.key:
        kinds = {source: frame.schema[name].dataType.simpleString() for source, frame in frames.items()}
        wanted = state[name].dataType.simpleString() if state else max(kinds.values(), key=_width, default="")
        owner = "the state" if state else "another source"
        for source, kind in kinds.items():
            if kind != wanted and not fits(kind, wanted):
                wrong.append(f"{source}: key column {name} has the type {kind}, but {owner} has {wanted}")
            elif kind != wanted:
                typed[source] = typed[source].withColumn(name, col(name).cast(wanted))
    if wrong:
        raise CheckFailed(wrong, cure=f"nothing was written; cast the column to {wanted} in the chunks")
    return typed


def fits(kind: str, wanted: str) -> bool:
    """Return whether every value of an integer type is also one of the wanted type."""
    return kind in INTEGERS and wanted in INTEGERS and INTEGERS.index(kind) <= INTEGERS.index(wanted)


def _width(kind: str) -> int:
    return INTEGERS.index(kind) if kind in INTEGERS else -1


def read_late(session: SparkSession, folder: Path) -> DataFrame | None:
    """Read the updates that an earlier run did not apply, and that can be applied now."""
    files = list(folder.glob("*.parquet"))
    if not files:
        return None
    frame: DataFrame = reader_of(session, files).parquet(str(folder))
    return frame.where(f.col("reason").isin(*REJOINED)).drop("reason", "newest_version")


def unusable(difflog: DiffLogConfig) -> Column:
    """Return the reason why a row cannot be used (no key, no version), or NULL."""
    no_key = f.lit(False)
    for name in difflog.entity.key:
        no_key = no_key | col(name).isNull()
    return f.when(no_key, "no key").when(col(difflog.entity.fast_version).isNull(), "no version")
