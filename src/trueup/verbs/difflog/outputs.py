"""The outputs of a run: each function writes one output and records it in the manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from trueup.engine.parquet_files import reader_of
from trueup.engine.progress import Progress
from trueup.errors import StoreError
from trueup.verbs.difflog.clickhouse import insert_files, open_target
from trueup.verbs.difflog.frame import RunFrame, without_expired
from trueup.verbs.difflog.layout import Layout, choose_layout
from trueup.verbs.difflog.manifest import Run
from trueup.verbs.difflog.mark import set_mark
from trueup.verbs.difflog.model import DELETED, EXPIRES, FAST, SLOW, DiffLogConfig
from trueup.verbs.difflog.spans import StateOutputs, write_states
from trueup.verbs.difflog.state import DataFile, StateTable
from trueup.verbs.difflog.steps.merge import col, cols
from trueup.verbs.difflog.steps.step import diff, late, states_at
from trueup.verbs.difflog.together import Output, write_together
from trueup.verbs.difflog.widen import fast_state, fast_version_of_values, widen

ROWS_PER_FILE = 500_000


def write_old_states(difflog: DiffLogConfig, table: StateTable, run: Run, frame: RunFrame) -> None:
    """Write `diff_log_0_state`: the old states of the visits in the chunk sets."""
    options = difflog.step_options()
    known = frame.data.where(col(frame.first.fast).isNotNull())
    fast = fast_state(frame.glue, old=True)
    more, versions = ([fast] if fast is not None else []), fast_version_of_values(old=True)
    states = states_at(known, frame.first, options, more, versions)
    write_together(run, [Output("diff_log_0_state", states, frame.counts.known)])
    of = len(table.files(run.facts["state_version"]))
    place = {"files": list(frame.files), "buckets": list(frame.buckets), "of": of}
    run.done("diff_log_0_state", **place, **_size(run.path("diff_log_0_state")))


def write_steps(difflog: DiffLogConfig, run: Run, frame: RunFrame, progress: Progress) -> None:
    """Write the steps: of each the signed log, the changed states, all states, and the late rows."""
    names = {source: f"diff_log_{number}_{source}" for number, source in enumerate(frame.steps, 1)}
    waiting = [source for source, name in names.items() if not run.has(name)]
    write_together(run, [one for source in waiting for one in _outputs_of_step(difflog, frame, source)])
    places = {source: _place(difflog, source) for source in waiting}
    states = {
        source: StateOutputs(f"{place}/visits_patched_new_only", f"{names[source]}/visits_patched")
        for source, place in places.items()
    }
    write_states(run, frame, states)
    for source, name in names.items():
        if source in waiting:
            _note_step(difflog, run, source, name)
        progress.advance()


def _outputs_of_step(difflog: DiffLogConfig, frame: RunFrame, source: str) -> Iterator[Output]:
    step, options, counts = frame.steps[source], frame.options[source], frame.counts.steps[source]
    signed = f"{_place(difflog, source)}/visit_log_slow"
    yield Output(signed, diff(frame.data, step, options), counts.changed)
    late_rows = late(frame.data, step, options)
    if counts.refused:
        late_rows = late_rows.unionByName(frame.refused[source], allowMissingColumns=True)
    yield Output(f"late/{source}", late_rows, counts.late + counts.refused)


def _place(difflog: DiffLogConfig, source: str) -> str:
    return f"processing/{difflog.entity.name}_{source}"


def _note_step(difflog: DiffLogConfig, run: Run, source: str, name: str) -> None:
    """Record that a step is complete."""
    place = _place(difflog, source)
    signed = _size(run.path(f"{place}/visit_log_slow"))
    reasons = _reasons(run.path(f"late/{source}"))
    run.done(
        name,
        diff=signed["rows"],
        new=_size(run.path(f"{place}/visits_patched_new_only"))["rows"],
        late=sum(reasons.values()),
        late_reasons=reasons,
        bytes=signed["bytes"],
    )


def _reasons(folder: Path) -> dict[str, int]:
    """Return the number of late rows per reason."""
    counts: Counter[str] = Counter()
    for path in folder.glob("*.parquet"):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=["reason"]) if file.metadata.num_rows else ():
                counts.update({one["values"]: one["counts"] for one in batch.column(0).value_counts().to_pylist()})
    return dict(counts)


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
    """Write the new states, and replace the files that the layout names, in one commit."""
    every = table.files(run.facts["state_version"])
    layout = choose_layout(every, set(frame.files), set(frame.buckets), frame.counts.keys)
    if table.last_run() < run.number:
        layout = _with_merged(session, table, layout, every)
        states = _new_states(session, difflog, table, run, frame, layout)
        added = table.write_files(states, run.number, changes=layout.changes_only)
        table.commit(run.number, states.schema, added, layout.replaced, record=run.facts["record"])
    run.done("state", removed=len(layout.replaced), changes_only=layout.changes_only)


def _with_merged(session: SparkSession, table: StateTable, layout: Layout, every: Sequence[DataFile]) -> Layout:
    """Add the files with keys of merged changes: without the changes, their states would be valid again."""
    schema = table.schema()
    if not layout.merged or schema is None:
        return layout
    keys = table.read(session, layout.merged, schema).select(*cols(table.key))
    known = {file.path for file in layout.replaced}
    files, _ = table.files_for(keys, [file for file in every if not file.has_changes and file.path not in known])
    return replace(layout, replaced=(*layout.replaced, *files))


def _new_states(
    session: SparkSession,
    difflog: DiffLogConfig,
    table: StateTable,
    run: Run,
    frame: RunFrame,
    layout: Layout,
) -> DataFrame:
    """Return the states after the last step, and the untouched states from the files that are replaced."""
    last = [frame.first, *[step.after for step in frame.steps.values()]][-1]
    fast = fast_state(frame.glue)
    known = frame.data.where(col(last.fast).isNotNull())
    more = [fast] if fast is not None else []
    states = states_at(known, last, difflog.step_options(), more, fast_version_of_values())
    schema = table.schema()
    if schema is not None and layout.replaced:
        untouched = table.read(session, layout.replaced, schema).join(
            frame.data.select(*cols(difflog.entity.key)), list(difflog.entity.key), "left_anti"
        )
        states = states.unionByName(untouched, allowMissingColumns=True)
    if difflog.state.ttl_days:
        states = states.withColumn(EXPIRES, expires(difflog, states))
    if not layout.changes_only:
        # A change that has expired stays: another file may have an older state of the key.
        states = without_expired(states, run)
    return states.select(*_ordered(difflog, states))


def insert_log(session: SparkSession, difflog: DiffLogConfig, run: Run, log: str) -> None:
    """Insert the wide log into ClickHouse, every file once; `log` is the id of the log.

    Raises StoreError if a file of the wide log is missing.
    """
    _check_complete(run, "visit_log_wide")
    files = sorted(run.path("visit_log_wide").glob("*.parquet"))
    resumed = bool(run.facts.get("inserting"))
    schema = reader_of(session, files).parquet(str(run.path("visit_log_wide"))).schema
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
