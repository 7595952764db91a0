"""The inputs of a run: sets of chunks, each a folder with one Parquet folder for the visits and for each side log."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueup.errors import CheckFailed, ConfigError
from trueup.verbs.difflog.merge import quoted
from trueup.verbs.difflog.model import Difflog

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# What a join was given, so that nothing is joined twice.
_JOINED = "join.json"


def chunk_folder(work: Path) -> Path:
    """Where chunk sets are looked for."""
    return work / "chunks"


def chunk_sets(work: Path) -> list[str]:
    """All chunk sets that are whole, in the order of their names."""
    return sorted(
        path.name
        for path in chunk_folder(work).glob("*")
        if path.is_dir() and not path.name.startswith(".") and not path.name.endswith(".part")
    )


def waiting_chunks(work: Path, taken: set[str]) -> list[str]:
    """The chunk sets that no run has taken, in the order of their names."""
    return [name for name in chunk_sets(work) if name not in taken]


def write_set(work: Path, sets: Sequence[str], given: Sequence[str], outputs: Mapping[str, DataFrame]) -> str:
    """Write a new chunk set, whole or not at all; what is pending stands in it, so both appear at once."""
    numbers = [int(name) for name in sets if name.isdigit()]
    name = f"{max(numbers, default=0) + 1:06d}"
    part = chunk_folder(work) / f"{name}.part"
    shutil.rmtree(part, ignore_errors=True)
    for place, frame in outputs.items():
        frame.write.parquet(str(part / place))
    (part / _JOINED).write_text(json.dumps({"given": list(given)}, indent=1), encoding="utf-8")
    os.rename(part, chunk_folder(work) / name)
    return name


def refuse_twice(work: Path, sets: Sequence[str], given: Sequence[str]) -> None:
    """Raw files that an earlier join took would count twice."""
    for name in sets:
        file = chunk_folder(work) / name / _JOINED
        before = set(json.loads(file.read_text(encoding="utf-8"))["given"]) if file.exists() else set()
        again = sorted(before & set(given))
        if again:
            raise ConfigError(f"{again[0]} was joined into chunk set {name} before", cure="give only new files")


def check_names(work: Path, names: Sequence[str], taken: set[str]) -> None:
    """Refuse chunk sets that are not there, or that a run has had before."""
    for name in names:
        if not (chunk_folder(work) / name).is_dir():
            raise ConfigError(f"there is no chunk set {chunk_folder(work) / name}", cure="see the names in that folder")
        if name in taken:
            raise ConfigError(f"chunk set {name} was taken by an earlier run", cure="name another one")


def sources(difflog: Difflog) -> list[str]:
    """The visits, then the side logs in the order they are applied."""
    return [difflog.entity.name, *[log.name for log in difflog.logs]]


def read_source(session: Any, difflog: Difflog, work: Path, names: Sequence[str], source: str) -> DataFrame | None:
    """The rows of one source from all chunk sets of a run; None if no set has any file of it."""
    folders = [chunk_folder(work) / name / source for name in names]
    paths = [str(folder) for folder in folders if any(folder.glob("*.parquet"))]
    if not paths:
        return None
    # Chunks may have gained columns: the union of their schemas holds.
    frame: DataFrame = session.read.option("mergeSchema", "true").parquet(*paths)
    lacking = [name for name in (*difflog.entity.key, difflog.entity.fast_version) if name not in frame.columns]
    if lacking:
        raise CheckFailed([f"the chunks of {source} have no column {', '.join(lacking)}"], cure="join them again")
    return frame


def read_late(session: Any, folder: Path) -> DataFrame | None:
    """Updates that an earlier run kept aside because they were older than the state."""
    if not any(folder.glob("*.parquet")):
        return None
    frame: DataFrame = session.read.parquet(str(folder)).where("reason = 'older'").drop("reason", "newest_version")
    return frame


def check_versions(frames: dict[str, DataFrame], difflog: Difflog) -> None:
    """A fast version that reaches the multiplier would read as a slow one: refused before anything is written."""
    from pyspark.sql import functions as f

    reasons = []
    fast = f.col(quoted(difflog.entity.fast_version)).cast("long")
    told = [
        frame.agg(f.lit(source).alias("source"), f.max(fast).alias("most"), f.min(fast).alias("least"))
        for source, frame in frames.items()
    ]
    for row in reduce(lambda one, other: one.union(other), told).collect():
        if row["most"] is not None and (row["most"] >= difflog.multiplier or row["least"] < 0):
            worst = row["most"] if row["most"] >= difflog.multiplier else row["least"]
            reasons.append(
                f"{row['source']}: {difflog.entity.fast_version} {worst} is not from 0 to below the multiplier"
                f" {difflog.multiplier}"
            )
    if reasons:
        raise CheckFailed(reasons, cure="nothing was written; start a new log with a larger multiplier")


def unusable(difflog: Difflog) -> Column:
    """Why a row cannot be used at all, or NULL: without key or version it belongs nowhere."""
    from pyspark.sql import functions as f

    no_key = f.lit(False)
    for name in difflog.entity.key:
        no_key = no_key | f.col(quoted(name)).isNull()
    return f.when(no_key, "no key").when(f.col(quoted(difflog.entity.fast_version)).isNull(), "no version")
