"""The frame of a run: one row per key of the chunks, with old state, updates, and the state after each step.

Each side is shuffled by key once and the joins keep this partitioning, so the run is one pass over its inputs; the
outputs are projections of the frame. The frame is deterministic: a run that continues after a kill computes it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import BooleanType, LongType, StructField, StructType

from trueup.verbs.difflog import chunks
from trueup.verbs.difflog.counts import StepCounts, count_rows
from trueup.verbs.difflog.manifest import Run
from trueup.verbs.difflog.merge import col, cols, quoted, time_columns
from trueup.verbs.difflog.model import DELETED, EXPIRES, SLOW, DiffLogConfig, SideLog, StepOptions
from trueup.verbs.difflog.state import StateTable
from trueup.verbs.difflog.step import StateColumns, StepColumns, advance, collected_updates, old_states, updated_columns
from trueup.verbs.difflog.widen import Glue, glue, old_values, unpacked


@dataclass(frozen=True)
class RunFrame:
    """The frame, and the names of the columns that hold each step and its states."""

    data: DataFrame
    keys: DataFrame
    first: StateColumns
    steps: Mapping[str, StepColumns]
    options: Mapping[str, StepOptions]
    refused: Mapping[str, DataFrame]
    glue: Glue
    # The files of the state table that may contain one of the keys.
    files: tuple[str, ...]

    @cached_property
    def counts(self) -> dict[str, StepCounts]:
        """The rows of the outputs of each step."""
        return count_rows(self.data, self.steps, self.refused)

    def unpersist(self) -> None:
        """Release the cached data."""
        self.data.unpersist()
        self.keys.unpersist()


def run_frame(
    session: SparkSession, difflog: DiffLogConfig, table: StateTable, run: Run, frames: Mapping[str, DataFrame]
) -> RunFrame:
    """Join the inputs of a run, and add the columns of all its steps."""
    keys = _keys(difflog, frames).persist()
    states, files = _old_states(session, difflog, table, run, keys, frames)
    options = {source: _options(difflog, run, source) for source in frames}
    updates = {source: _updates(difflog, run, source, frame) for source, frame in frames.items()}
    columns = {source: _slow_columns(difflog, source, frame, options[source]) for source, frame in updates.items()}
    visits = updates.get(difflog.entity.name)
    values = glue(difflog, states.schema, frames[difflog.entity.name] if visits is not None else None)
    some = next(iter(options.values()))
    old, first = old_states(states, some, old_values(difflog, values, states.schema))
    data = keys.join(old, list(difflog.entity.key), "left")
    for number, (source, frame) in enumerate(updates.items(), 1):
        data = data.join(collected_updates(frame, options[source], number), list(difflog.entity.key), "left")
    before, steps = first, {}
    for number, source in enumerate(updates, 1):
        data, steps[source] = advance(data, before, first.fast, columns[source], options[source], number)
        before = steps[source].after
    data = unpacked(data, values, steps[difflog.entity.name].newest if visits is not None else "")
    refused = {source: _refused(difflog, run, frame) for source, frame in frames.items()}
    return RunFrame(data.persist(), keys, first, steps, options, refused, values, tuple(files))


def without_expired(states: DataFrame, run: Run) -> DataFrame:
    """Return the states that are not expired."""
    if EXPIRES not in states.columns:
        return states
    today = f.lit(run.facts["today"]).cast("date")
    return states.where(f.col(EXPIRES).isNull() | (f.col(EXPIRES) >= today))


def _keys(difflog: DiffLogConfig, frames: Mapping[str, DataFrame]) -> DataFrame:
    """Return every key of the chunks, once."""
    usable = [frame.where(chunks.unusable(difflog).isNull()) for frame in frames.values()]
    names = cols(difflog.entity.key)
    return reduce(lambda one, other: one.union(other), [frame.select(*names) for frame in usable]).distinct()


def _old_states(
    session: SparkSession,
    difflog: DiffLogConfig,
    table: StateTable,
    run: Run,
    keys: DataFrame,
    frames: Mapping[str, DataFrame],
) -> tuple[DataFrame, list[str]]:
    """Read the files of the state table that may contain these keys; return their states and their paths."""
    every = table.files(run.facts["state_version"])
    before = run.facts["outputs"].get("diff_log_0_state")
    if before is not None:
        paths = set(before["files"])
        files = [file for file in every if file.path in paths]
    else:
        files = table.files_for(keys, every)
    schema = table.schema() or _first_schema(difflog, frames)
    return without_expired(table.read(session, files, schema), run), [file.path for file in files]


def _options(difflog: DiffLogConfig, run: Run, source: str) -> StepOptions:
    return difflog.step_options(_log(difflog, source), rejoin_late=run.facts["rejoin_late"])


def _log(difflog: DiffLogConfig, source: str) -> SideLog | None:
    return next((log for log in difflog.logs if log.name == source), None)


def _updates(difflog: DiffLogConfig, run: Run, source: str, updates: DataFrame) -> DataFrame:
    """Return the usable updates, without duplicates."""
    log = _log(difflog, source)
    usable = updates.where(_reason(difflog, run, updates).isNull())
    if log and log.id and all(name in updates.columns for name in log.id):
        return _once(difflog, log, usable)
    return usable


def _refused(difflog: DiffLogConfig, run: Run, updates: DataFrame) -> DataFrame:
    """Return the updates that cannot be used, with the reason."""
    return updates.withColumn("reason", _reason(difflog, run, updates)).where("reason IS NOT NULL")


def _reason(difflog: DiffLogConfig, run: Run, updates: DataFrame) -> Column:
    """Return the reason why an update cannot be used, or NULL."""
    reason = chunks.unusable(difflog)
    if difflog.state.ttl_days and difflog.state.ttl_column in updates.columns:
        due = f.date_add(f.to_date(quoted(difflog.state.ttl_column)), difflog.state.ttl_days)
        reason = f.coalesce(reason, f.when(due < f.lit(run.facts["today"]).cast("date"), "expired"))
    return reason


def _once(difflog: DiffLogConfig, log: SideLog, updates: DataFrame) -> DataFrame:
    """Return each row of a log once; rows with a NULL in the id all count."""
    has_id = reduce(lambda one, other: one & other, [col(name).isNotNull() for name in log.id])
    names = [quoted(name) for name in dict.fromkeys((*difflog.entity.key, *log.id))]
    rest = f.struct(*cols(name for name in updates.columns if quoted(name) not in names))
    # If duplicates differ, the choice is deterministic.
    once = updates.where(has_id).groupBy(*names).agg(f.max(rest).alias("rest")).select(*names, "rest.*")
    return once.unionByName(updates.where(~has_id))


def _slow_columns(difflog: DiffLogConfig, source: str, updates: DataFrame, options: StepOptions) -> list[str]:
    """Return the columns of the updates that are part of the slow state."""
    skip = set(difflog.entity.dropped)
    # The time of a `last` rule is part of the state, also if it orders the rows of a log.
    state = {*difflog.rules, *time_columns(options)}
    for log in difflog.logs:
        # Columns that only identify or order the rows of a log are not part of the state.
        skip |= ({*log.id, log.order_by} if log.name != source else set(log.id)) - state
    return [name for name in updated_columns(updates, options) if name not in skip]


def _first_schema(difflog: DiffLogConfig, frames: Mapping[str, DataFrame]) -> StructType:
    """Return the schema of the state before the first run: key and versions."""
    some = next(iter(frames.values())).schema
    fields = [StructField(name, some[name].dataType) for name in difflog.entity.key]
    fields += [StructField(difflog.entity.fast_version, LongType()), StructField(SLOW, LongType())]
    return StructType([*fields, StructField(DELETED, BooleanType())])
