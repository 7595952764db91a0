"""The verb as Python calls: a Spark session is found or started, and every run is in the task store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import reduce
from pathlib import Path
from typing import Any

from trueup.config.settings import SparkSettings
from trueup.engine.progress import Progress
from trueup.errors import ConfigError
from trueup.store import TaskStore
from trueup.task.open import OpenTask, open_task
from trueup.verbs.difflog import chunks
from trueup.verbs.difflog.join import Joined, join
from trueup.verbs.difflog.manifest import Runs, only_one
from trueup.verbs.difflog.merge import quoted
from trueup.verbs.difflog.model import Difflog
from trueup.verbs.difflog.prove import Proof, prove_clickhouse, prove_log
from trueup.verbs.difflog.run import RunResult, run
from trueup.verbs.difflog.state import StateTable

# Joins of millions of rows want more than the hashing of blocks does.
_MEMORY = {
    "spark.driver.memory": "3g",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC -Xss4m",
    # Partitions that fit into memory are joined without being sorted first.
    "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold": "64m",
}


@contextmanager
def spark_session(settings: SparkSettings) -> Iterator[Any]:
    """The session of this process, or a new one that ends with the block."""
    from trueup.engine.session import existing_session, start_session

    if not (settings.master or settings.remote) and (session := existing_session()) is not None:
        yield session
        return
    local = {} if settings.master or settings.remote else _MEMORY
    session = start_session(
        slots=os.cpu_count() or 2, master=settings.master, remote=settings.remote, conf={**local, **settings.conf}
    )
    try:
        yield session
    finally:
        session.stop()


def run_log(
    difflog: Difflog,
    *,
    spark: SparkSettings | None = None,
    names: Sequence[str] = (),
    rejoin_late: bool = False,
    task_db: str | None = None,
    progress: Progress | None = None,
) -> RunResult:
    """Work through the waiting chunk sets, or finish the run that was stopped."""
    context = {"chunks": list(names), "late": "rejoin" if rejoin_late else "keep", "work": difflog.work}
    with _task("DIFFLOG_RUN", difflog, context, spark, task_db, progress) as (task, session):
        result = run(session, difflog, names=names, rejoin_late=rejoin_late, progress=task.progress)
        task.finish(asdict(result))
        return result


def prove_log_table(
    difflog: Difflog,
    *,
    fast_log: Sequence[Path] = (),
    spark: SparkSettings | None = None,
    task_db: str | None = None,
) -> Proof:
    """Whether every key collapses to one row, the one that the state table holds.

    The ClickHouse table is asked; with `fast_log` (the fast supplier's signed rows as Parquet), the logs themselves.
    """
    with _task("DIFFLOG_PROVE", difflog, {"work": difflog.work}, spark, task_db) as (task, session):
        state = state_rows(session, difflog)
        if fast_log:
            fast = session.read.parquet(*map(str, fast_log))
            proof = prove_log(session, fast, _slow_log(session, difflog), difflog, state)
        else:
            proof = prove_clickhouse(session, difflog, state)
        task.finish(proof.as_json())
        return proof


def _slow_log(session: Any, difflog: Difflog) -> Any:
    """All signed rows that the finished runs have written."""
    runs = [run for run in Runs(Path(difflog.work)).all() if run.has("visit_log_wide")]
    if not runs:
        raise ConfigError("there is no run yet, so there is nothing to prove", cure="trueup difflog run")
    paths = [str(run.path("visit_log_wide")) for run in runs]
    return session.read.option("mergeSchema", "true").parquet(*paths)


def join_logs(
    difflog: Difflog,
    *,
    visits: Sequence[Path],
    logs: Mapping[str, Sequence[Path]],
    spark: SparkSettings | None = None,
    task_db: str | None = None,
) -> str:
    """Make a chunk set from raw visits and raw side logs; returns its name."""
    context = {"work": difflog.work, "visits": list(map(str, visits))}
    with _task("DIFFLOG_JOIN", difflog, context, spark, task_db) as (task, session), only_one(Path(difflog.work)):
        name = _join(session, difflog, visits, logs)
        task.finish({"chunks": name})
        return name


def state_rows(session: Any, difflog: Difflog) -> Any:
    """The whole state table as a DataFrame, or None before the first run."""
    table = _table(difflog)
    schema = table.schema(session)
    return None if schema is None else table.read(session, table.files(), schema)


@contextmanager
def _task(
    task_type: str,
    difflog: Difflog,
    context: Mapping[str, object],
    spark: SparkSettings | None,
    task_db: str | None,
    progress: Progress | None = None,
) -> Iterator[tuple[OpenTask, Any]]:
    """Open a task and a Spark session for its work."""
    with (
        TaskStore(task_db) as store,
        open_task(
            store,
            task_type,
            table=difflog.entity.name,
            context=context,
            progress=progress,
            on_interrupt="run the command again: it continues where it stopped",
        ) as task,
        spark_session(spark or SparkSettings()) as session,
    ):
        yield task, session


def _join(session: Any, difflog: Difflog, visits: Sequence[Path], logs: Mapping[str, Sequence[Path]]) -> str:
    work = Path(difflog.work)
    sets = chunks.chunk_sets(work)
    given = [str(path.absolute()) for path in (*visits, *(each for some in logs.values() for each in some))]
    chunks.refuse_twice(work, sets, given)
    waiting = [name for name in sets if name not in Runs(work).taken_chunks()]
    pending = {
        log.name: session.read.parquet(str(place))
        for log in difflog.logs
        if sets and (place := chunks.chunk_folder(work) / sets[-1] / "pending" / log.name).is_dir()
    }
    raw = session.read.option("mergeSchema", "true").parquet(*map(str, visits))
    joined = join(
        session,
        difflog,
        visits=raw,
        logs={name: session.read.option("mergeSchema", "true").parquet(*map(str, some)) for name, some in logs.items()},
        known=_known(session, difflog, waiting, raw),
        pending=pending,
    )
    return chunks.write_set(work, sets, given, _outputs(difflog, joined))


def _known(session: Any, difflog: Difflog, waiting: Sequence[str], raw: Any) -> Any:
    """Key and newest fast version of all visits that the state table or a waiting chunk set has."""
    from pyspark.sql import functions as f

    entity, work = difflog.entity, Path(difflog.work)
    columns = [*entity.key, entity.fast_version]
    found = [frame for frame in (state_rows(session, difflog),) if frame is not None]
    visits = chunks.read_source(session, difflog, work, waiting, entity.name) if waiting else None
    # Before the first run nothing is known; the raw visits say what a key looks like.
    found.append(visits if visits is not None else raw.limit(0))
    frames = [frame.select(*[f.col(quoted(name)) for name in columns]) for frame in found]
    every = reduce(lambda one, other: one.unionByName(other), frames)
    return every.groupBy(*[f.col(quoted(name)) for name in entity.key]).agg(
        f.max(quoted(entity.fast_version)).alias(entity.fast_version)
    )


def _outputs(difflog: Difflog, joined: Joined) -> dict[str, Any]:
    """The frames of a chunk set by the folder they go to."""
    return {
        difflog.entity.name: joined.visits,
        **joined.logs,
        **{f"pending/{name}": frame for name, frame in joined.pending.items()},
        **{f"refused/{name}": frame for name, frame in joined.refused.items()},
    }


def _table(difflog: Difflog) -> StateTable:
    return StateTable(Path(difflog.state.path), difflog.entity.key, difflog.state.buckets)
