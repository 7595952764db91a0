"""Joins files of raw visits and raw side logs into a new chunk set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from trueup.verbs.difflog import chunks
from trueup.verbs.difflog.manifest import Runs, lock_work_folder
from trueup.verbs.difflog.merge import cols, quoted
from trueup.verbs.difflog.model import DiffLogConfig
from trueup.verbs.difflog.record import check_log
from trueup.verbs.difflog.state import state_rows
from trueup.verbs.difflog_ends.join import Joined, join


def join_files(
    session: SparkSession, difflog: DiffLogConfig, *, visits: Sequence[Path], logs: Mapping[str, Sequence[Path]]
) -> str:
    """Write a chunk set from Parquet files, and return its name. Raises ConfigError if a file was joined before."""
    work = Path(difflog.work)
    with lock_work_folder(work):
        check_log(difflog)
        sets = chunks.chunk_sets(work)
        inputs = [str(path.absolute()) for path in (*visits, *(path for paths in logs.values() for path in paths))]
        chunks.check_not_joined(work, sets, inputs)
        raw = _read(session, visits)
        joined = join(
            session,
            difflog,
            visits=raw,
            logs={name: _read(session, paths) for name, paths in logs.items()},
            known=_known_visits(session, difflog, chunks.waiting_chunks(work, Runs(work).taken_chunks()), raw),
            pending=_pending_rows(session, difflog, work, sets),
        )
        return chunks.write_set(work, sets, inputs, _folders(difflog, joined))


def _read(session: SparkSession, paths: Sequence[Path]) -> DataFrame:
    return session.read.option("mergeSchema", "true").parquet(*map(str, paths))


def _pending_rows(
    session: SparkSession, difflog: DiffLogConfig, work: Path, sets: Sequence[str]
) -> dict[str, DataFrame]:
    """Return the rows of side logs whose visit was unknown to the last join."""
    if not sets:
        return {}
    folder = chunks.chunk_folder(work) / sets[-1] / "pending"
    names = [log.name for log in difflog.logs if (folder / log.name).is_dir()]
    return {name: session.read.parquet(str(folder / name)) for name in names}


def _known_visits(session: SparkSession, difflog: DiffLogConfig, waiting: Sequence[str], raw: DataFrame) -> DataFrame:
    """Return key and newest fast version of all visits in the state table or in a waiting chunk set."""
    entity = difflog.entity
    columns = cols((*entity.key, entity.fast_version))
    visits = chunks.read_source(session, difflog, Path(difflog.work), waiting, entity.name) if waiting else None
    # Without a waiting set, an empty frame with the types of the raw visits.
    frames = [state_rows(session, difflog), raw.limit(0) if visits is None else visits]
    selected = [frame.select(*columns) for frame in frames if frame is not None]
    every = reduce(lambda one, other: one.unionByName(other), selected)
    newest = f.max(quoted(entity.fast_version)).alias(entity.fast_version)
    return every.groupBy(*cols(entity.key)).agg(newest)


def _folders(difflog: DiffLogConfig, joined: Joined) -> dict[str, DataFrame]:
    """Return the frames of a chunk set by the folder they are written to."""
    return {
        difflog.entity.name: joined.visits,
        **joined.logs,
        **{f"pending/{name}": frame for name, frame in joined.pending.items()},
        **{f"refused/{name}": frame for name, frame in joined.refused.items()},
    }
