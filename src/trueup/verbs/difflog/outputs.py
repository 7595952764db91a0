"""The outputs of a run: each function writes one output and records it in the manifest."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from trueup.errors import StoreError
from trueup.verbs.difflog.clickhouse import insert_files, open_target
from trueup.verbs.difflog.counts import write_rows
from trueup.verbs.difflog.frame import RunFrame, without_expired
from trueup.verbs.difflog.manifest import Run
from trueup.verbs.difflog.mark import set_mark
from trueup.verbs.difflog.merge import col, cols
from trueup.verbs.difflog.model import DELETED, EXPIRES, FAST, SLOW, DiffLogConfig
from trueup.verbs.difflog.state import DataFile, StateTable
from trueup.verbs.difflog.step import diff, late, new_only, states_at, unchanged
from trueup.verbs.difflog.widen import fast_state, fast_version_of_values, widen

ROWS_PER_FILE = 500_000


def write_old_states(difflog: DiffLogConfig, table: StateTable, run: Run, frame: RunFrame) -> None:
    """Write `diff_log_0_state`: the old states of the visits in the chunk sets."""
    options = difflog.step_options()
    known = frame.data.where(col(frame.first.fast).isNotNull())
    fast = fast_state(frame.glue, old=True)
    with run.output("diff_log_0_state") as folder:
        more, versions = ([fast] if fast is not None else []), fast_version_of_values(old=True)
        states_at(known, frame.first, options, more, versions).write.parquet(str(folder))
    of = len(table.files(run.facts["state_version"]))
    run.done("diff_log_0_state", files=list(frame.files), of=of, **_size(run.path("diff_log_0_state")))


def write_step(
    session: SparkSession, difflog: DiffLogConfig, run: Run, source: str, frame: RunFrame, name: str
) -> None:
    """Write one step: the signed log, the changed states, all states, and the late rows."""
    step, options, counts = frame.steps[source], frame.options[source], frame.counts[source]
    folder = f"processing/{difflog.entity.name}_{source}"
    late_rows = late(frame.data, step, options).unionByName(frame.refused[source], allowMissingColumns=True)
    _in_parallel(
        partial(_write, run, f"{folder}/visit_log_slow", diff(frame.data, step, options), counts.changed),
        partial(_write_states, run, folder, name, frame, source),
        partial(_write, run, f"late/{source}", late_rows, counts.late),
    )
    signed = _size(run.path(f"{folder}/visit_log_slow"))
    reasons = _reasons(session, run.path(f"late/{source}"))
    run.done(
        name,
        diff=signed["rows"],
        new=_size(run.path(f"{folder}/visits_patched_new_only"))["rows"],
        late=sum(reasons.values()),
        late_reasons=reasons,
        bytes=signed["bytes"],
    )


def _write(run: Run, name: str, frame: DataFrame, rows: int) -> None:
    with run.output(name) as folder:
        write_rows(frame, folder, rows)


def _write_states(run: Run, place: str, name: str, frame: RunFrame, source: str) -> None:
    """Write the changed states, and all states: the files of the changed states are linked, not written twice."""
    step, options, counts = frame.steps[source], frame.options[source], frame.counts[source]
    _write(run, f"{place}/visits_patched_new_only", new_only(frame.data, step, options), counts.changed)
    with run.output(f"{name}/visits_patched") as folder:
        write_rows(unchanged(frame.data, step, options), folder, counts.unchanged)
        for file in run.path(f"{place}/visits_patched_new_only").glob("*.parquet"):
            _link(file, folder / f"new-{file.name}")


def _link(file: Path, target: Path) -> None:
    """Hard-link a file, or copy it if the file system does not support links."""
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)


def _in_parallel(*jobs: Callable[[], None]) -> None:
    """Run Spark jobs in parallel, so that one is planned while another computes. Raises the first error."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        for done in [pool.submit(job) for job in jobs]:
            done.result()


def _reasons(session: SparkSession, folder: Path) -> dict[str, int]:
    """Return the number of late rows per reason."""
    if not _size(folder)["rows"]:
        return {}
    counts = session.read.parquet(str(folder)).groupBy("reason").agg(f.count("*")).collect()
    return {row[0]: row[1] for row in counts}


def wide_log(difflog: DiffLogConfig, frame: RunFrame) -> DataFrame:
    """Return the signed logs of all steps, with the dropped columns."""
    more = frame.glue.columns()
    parts = []
    for source, step in frame.steps.items():
        signed = diff(frame.data, step, frame.options[source], more)
        of_visits = source == difflog.entity.name
        parts.append(widen(signed, signed.columns[: -len(more)], difflog, frame.glue, of_visits=of_visits))
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts).drop("Block")


def check_table(difflog: DiffLogConfig, wide: DataFrame) -> None:
    """Raise CheckFailed if the table in ClickHouse cannot store the log, before anything is written."""
    if difflog.target.table:
        with open_target(difflog.target) as house:
            house.check_table(wide.schema, key=difflog.entity.key, fast_version=difflog.entity.fast_version)


def write_wide_log(run: Run, wide: DataFrame) -> None:
    """Write `visit_log_wide`."""
    with run.output("visit_log_wide") as folder:
        wide.write.option("maxRecordsPerFile", ROWS_PER_FILE).parquet(str(folder))
    run.done("visit_log_wide", **_size(run.path("visit_log_wide")))


def is_committed(table: StateTable, run: Run) -> bool:
    """Return whether the states of a run are in the state table, also if it was killed before it could record that."""
    if run.is_recorded and not run.has("state") and table.last_run() >= run.number:
        table.sync()
        run.done("state")
    return run.has("state")


def commit_states(session: SparkSession, difflog: DiffLogConfig, table: StateTable, run: Run, frame: RunFrame) -> None:
    """Replace the files of the state table that were read by files with the new states, in one commit."""
    old = set(run.facts["outputs"]["diff_log_0_state"]["files"])
    every = table.files(run.facts["state_version"])
    removed = [file for file in every if file.path in old]
    if table.last_run() < run.number:
        states = _new_states(session, difflog, table, run, frame, removed)
        added = table.write_files(states, run.number)
        table.commit(run.number, states.schema, added, removed, record=run.facts["record"])
    run.done("state", removed=len(removed))


def _new_states(
    session: SparkSession,
    difflog: DiffLogConfig,
    table: StateTable,
    run: Run,
    frame: RunFrame,
    removed: Sequence[DataFile],
) -> DataFrame:
    """Return the states after the last step, and the untouched states from the files that are replaced."""
    last = [frame.first, *[step.after for step in frame.steps.values()]][-1]
    fast = fast_state(frame.glue)
    known = frame.data.where(col(last.fast).isNotNull())
    more = [fast] if fast is not None else []
    states = states_at(known, last, difflog.step_options(), more, fast_version_of_values())
    schema = table.schema()
    if schema is not None and removed:
        untouched = table.read(session, removed, schema).join(frame.keys, list(difflog.entity.key), "left_anti")
        states = states.unionByName(untouched, allowMissingColumns=True)
    if difflog.state.ttl_days:
        states = states.withColumn(EXPIRES, expires(difflog, states))
    states = without_expired(states, run)
    return states.select(*_ordered(difflog, states))


def insert_log(session: SparkSession, difflog: DiffLogConfig, run: Run, log: str) -> None:
    """Insert the wide log into ClickHouse, every file once; `log` is the id of the log.

    Raises StoreError if a file of the wide log is missing.
    """
    _check_complete(run, "visit_log_wide")
    files = sorted(run.path("visit_log_wide").glob("*.parquet"))
    resumed = bool(run.facts.get("inserting"))
    schema = session.read.parquet(str(run.path("visit_log_wide"))).schema
    with open_target(difflog.target) as house:
        house.ensure_table(schema, key=difflog.entity.key, fast_version=difflog.entity.fast_version)
        set_mark(house, log)
        # From here on some files may be inserted: a run that continues this one must check.
        run.note(inserting=True)
        inserted, skipped = insert_files(house, files, key=difflog.entity.key, resumed=resumed)
    run.done("clickhouse", inserted=inserted, skipped=skipped)


def _check_complete(run: Run, name: str) -> None:
    """Raise StoreError if an output does not contain the rows that the manifest lists."""
    expected, found = run.facts["outputs"][name]["rows"], _size(run.path(name))["rows"]
    if found != expected:
        raise StoreError(
            f"{run.path(name)} contains {found:,} rows, but the run wrote {expected:,}: files are missing",
            cure="restore the folder; the state contains this run already",
        )


def expires(difflog: DiffLogConfig, states: DataFrame) -> Column:
    """Return the day on which a state expires."""
    name = difflog.state.ttl_column
    value = col(name) if name in states.columns else f.col(FAST).getField(name)
    return f.date_add(f.to_date(value), difflog.state.ttl_days)


def _ordered(difflog: DiffLogConfig, states: DataFrame) -> list[Column]:
    """Return the columns of the state table in a fixed order: key and versions first."""
    first = [*difflog.entity.key, difflog.entity.fast_version, SLOW, DELETED]
    rest = [name for name in states.columns if name not in first]
    return cols((*first, *rest))


def _size(folder: Path) -> dict[str, int]:
    """Return the rows and bytes of an output, from the footers of its files."""
    files = list(folder.glob("*.parquet"))
    return {
        "rows": sum(pq.read_metadata(file).num_rows for file in files),
        "bytes": sum(file.stat().st_size for file in files),
    }
