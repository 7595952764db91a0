"""Joins files of raw visits and raw side logs into a new chunk set."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from trueup.engine.parquet_files import given_files, inode, local_path, reader_of, row_count
from trueup.errors import StoreError
from trueup.verbs.difflog import chunks
from trueup.verbs.difflog.input_checks import check_chunk_sets, raise_if_any
from trueup.verbs.difflog.manifest import Runs, lock_work_folder
from trueup.verbs.difflog.model import DiffLogConfig
from trueup.verbs.difflog.record import check_log
from trueup.verbs.difflog.state import StateTable, state_rows
from trueup.verbs.difflog.steps.merge import cols, quoted
from trueup.verbs.difflog.value_checks import input_errors
from trueup.verbs.difflog_ends.join import Joined, join

_RESTORE = "restore it from a backup. To free disk space, use `trueup difflog prune`"


@dataclass(frozen=True)
class JoinResult:
    """The chunk set that a join has written, and its rows per source."""

    chunks: str
    rows: dict[str, int] = field(default_factory=dict)
    # Rows of side logs whose visit is unknown, and rows without a key or a version.
    pending: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)


def join_files(
    session: SparkSession, difflog: DiffLogConfig, *, visits: Sequence[str], logs: Mapping[str, Sequence[str]]
) -> JoinResult:
    """Write a chunk set from Parquet files. Raises CheckFailed if a file cannot be read, or was joined before."""
    work = Path(difflog.work)
    with lock_work_folder(work), input_errors(None):
        check_log(difflog)
        runs = Runs(work)
        before = _joined_sets(work, runs)
        given, files = check_files(visits=visits, logs=logs)
        _check_not_joined(before, list(map(str, files)))
        waiting = chunks.waiting_chunks(work, runs.committed_chunks())
        check_chunk_sets(difflog, work, waiting, StateTable.of(difflog).schema())
        raw = _read(session, given.pop(""))
        joined = join(
            session,
            difflog,
            visits=raw,
            logs={name: _read(session, paths) for name, paths in given.items()},
            known=_known_visits(session, difflog, waiting, raw),
            pending=_earlier(session, difflog, work, "pending", list(before)[-1:]),
            applied=_earlier(session, difflog, work, "applied", list(before)),
        )
        name = chunks.write_set(work, runs.taken_chunks(), list(map(str, files)), _folders(difflog, joined))
    return _result(difflog, name, chunks.chunk_folder(work) / name)


def check_files(
    *, visits: Sequence[str], logs: Mapping[str, Sequence[str]]
) -> tuple[dict[str, list[Path]], list[Path]]:
    """Return the given paths by side log ("" for the visits), and all their files. Spark is not needed.

    Raises CheckFailed if a path does not exist, or a file cannot be read.
    """
    given = {name: [local_path(text) for text in texts] for name, texts in {"": visits, **logs}.items()}
    files, problems = given_files(given)
    raise_if_any(problems, "nothing was written; correct the paths or the files, then join again")
    return given, files


def _joined_sets(work: Path, runs: Runs) -> dict[str, list[str]]:
    """Return the chunk sets that joins have written, from the first to the last, and the files that they have read.

    Raises StoreError if a part that a join needs was removed: rows would be lost, or count twice. A set that no run has
    processed may be removed as a whole: it is then joined again.
    """
    names = {*chunks.joined_sets(work, chunks.chunk_sets(work)), *runs.joined_chunks()}
    found = {}
    for name in sorted(names, key=lambda name: (len(name), name)):
        folder = chunks.chunk_folder(work) / name
        file = folder / chunks.JOIN_FILE
        try:
            noted = json.loads(file.read_text(encoding="utf-8"))
            found[name], kept = list(map(str, noted["files"])), list(map(str, noted["kept"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"cannot read {file}: {error}", cure=_RESTORE) from None
        for path in (folder / part for part in kept):
            if not path.exists():
                raise StoreError(f"{path} does not exist, but a join has written it", cure=_RESTORE)
    return found


def _check_not_joined(before: Mapping[str, Sequence[str]], files: Sequence[str]) -> None:
    """Raise CheckFailed if an earlier join has read one of these files, under any name: its rows would count twice."""
    by_path = {path: name for name, paths in before.items() for path in paths}
    by_inode = {inode(path): name for path, name in by_path.items()}
    by_inode.pop(None, None)
    again = [(path, by_path.get(path) or by_inode.get(inode(path))) for path in files]
    reasons = [f"{path} was already joined into chunk set {name}" for path, name in again if name]
    raise_if_any(reasons, "nothing was written; name only new files")


def _read(session: SparkSession, paths: Sequence[Path]) -> DataFrame:
    """Read files and folders; each on its own, because columns may come from the names of folders."""
    frames = [session.read.option("mergeSchema", "true").parquet(str(path)) for path in paths]
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def _earlier(
    session: SparkSession, difflog: DiffLogConfig, work: Path, kind: str, sets: Sequence[str]
) -> dict[str, DataFrame]:
    """Return rows that earlier joins have kept in these sets, by side log."""
    frames = {}
    for log in difflog.logs:
        folders = [chunks.chunk_folder(work) / name / kind / log.name for name in sets]
        files = [file for folder in folders for file in folder.glob("*.parquet")]
        if files:
            paths = [str(folder) for folder in dict.fromkeys(file.parent for file in files)]
            frames[log.name] = reader_of(session, files).parquet(*paths)
    return frames


def _result(difflog: DiffLogConfig, name: str, folder: Path) -> JoinResult:
    """Return the number of rows of each output of a join."""

    def counted(*parts: str) -> dict[str, int]:
        found = {source: row_count(folder.joinpath(*parts, source)) for source in chunks.sources(difflog)}
        return {source: count for source, count in found.items() if count}

    return JoinResult(name, counted(), counted("pending"), counted("refused"))


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
        **{f"applied/{name}": frame for name, frame in joined.applied.items()},
    }
