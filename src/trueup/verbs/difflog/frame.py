"""The frame of a run: one row per key of the chunks, with old state, updates, and the state after each step.

All inputs are shuffled and sorted by key together, once; the outputs are computed from the frame. The frame is
deterministic: a run that continues after a kill computes it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import BooleanType, LongType, StructField, StructType

from trueup.verbs.difflog import chunks, layout
from trueup.verbs.difflog.manifest import Run
from trueup.verbs.difflog.model import DELETED, EXPIRES, SLOW, DiffLogConfig, SideLog, StepOptions
from trueup.verbs.difflog.state import StateTable
from trueup.verbs.difflog.steps.columns import Glue, StateColumns, StepColumns
from trueup.verbs.difflog.steps.merge import col, collected, cols, element, quoted, time_columns
from trueup.verbs.difflog.steps.step import advance, old_states, updated_columns, updates_name
from trueup.verbs.difflog.widen import glue, old_values, unpacked

# The old state of a key, and whether a refused row has it, while the inputs are shuffled.
_STATE = "__trueup_state"
_GIVEN = "__trueup_given"
# The number of updates of a key, and whether one of them has a fast version that would be read as a slow version.
UPDATES = "__trueup_updates"
WRONG_VERSION = "__trueup_wrong_version"


@dataclass(frozen=True)
class RunFrame:
    """The frame, and the names of the columns that hold each step and its states."""

    data: DataFrame
    first: StateColumns
    steps: Mapping[str, StepColumns]
    options: Mapping[str, StepOptions]
    # The updates that can be used, and the others.
    usable: Mapping[str, DataFrame]
    refused: Mapping[str, DataFrame]
    glue: Glue
    # The files of the state table that may contain one of the keys, and the buckets of the keys.
    files: tuple[str, ...]
    buckets: tuple[int, ...]

    @property
    def last(self) -> StateColumns:
        """The columns with the states after the last step."""
        return [self.first, *[step.after for step in self.steps.values()]][-1]


def run_frame(
    session: SparkSession, difflog: DiffLogConfig, table: StateTable, run: Run, frames: Mapping[str, DataFrame]
) -> RunFrame:
    """Join the inputs of a run, and add the columns of all its steps."""
    states, files, buckets = _old_states(session, difflog, table, run, frames)
    options = {source: _options(difflog, run, source) for source in frames}
    usable = {source: frame.where(_reason(difflog, run, frame).isNull()) for source, frame in frames.items()}
    updates = {source: _updates(difflog, source, frame) for source, frame in usable.items()}
    columns = {source: _slow_columns(difflog, source, frame, options[source]) for source, frame in updates.items()}
    visits = updates.get(difflog.entity.name)
    values = glue(difflog, states.schema, frames[difflog.entity.name] if visits is not None else None)
    some = next(iter(options.values()))
    old, first = old_states(states, some, old_values(difflog, values, states.schema))
    data = _grouped(difflog, old, updates, options, _expired_keys(difflog, run, frames))
    data = data.select("*", *_checked(difflog, len(updates)))
    before, steps = first, {}
    for number, source in enumerate(updates, 1):
        data, steps[source] = advance(data, before, first.fast, columns[source], options[source], number)
        before = steps[source].after
    data = unpacked(data, values, steps[difflog.entity.name].newest if visits is not None else "")
    refused = {source: _refused(difflog, run, frame) for source, frame in frames.items()}
    return RunFrame(data, first, steps, options, usable, refused, values, files, buckets)


def without_expired(states: DataFrame, run: Run) -> DataFrame:
    """Return the states that are not expired."""
    if EXPIRES not in states.columns:
        return states
    today = f.lit(run.facts["today"]).cast("date")
    return states.where(f.col(EXPIRES).isNull() | (f.col(EXPIRES) >= today))


def _grouped(
    difflog: DiffLogConfig,
    old: DataFrame,
    updates: Mapping[str, DataFrame],
    options: Mapping[str, StepOptions],
    others: Sequence[DataFrame],
) -> DataFrame:
    """Return one row per key of the updates: its old state, and its updates as one array per source.

    `others` are further keys, with a column `_GIVEN`.
    """
    key = cols(difflog.entity.key)
    fields = [name for name in old.columns if name not in difflog.entity.key]
    parts, arrays = [old.select(*key, f.struct(*cols(fields)).alias(_STATE))], []
    for number, (source, frame) in enumerate(updates.items(), 1):
        arrays.append(updates_name(number))
        parts.append(frame.select(*key, element(frame, options[source]).alias(arrays[-1])))
    every = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), [*parts, *others])
    # Shuffled before, not after a first aggregation: most keys have one row per source.
    groups = every.repartition(*key).groupBy(*key)
    given = [_GIVEN] if others else []
    once = [f.first(name, ignorenulls=True).alias(name) for name in (_STATE, *given)]
    rows = groups.agg(*once, *[collected(name).alias(name) for name in arrays])
    is_given = reduce(lambda one, other: one | other, [col(name).isNotNull() for name in (*arrays, *given)])
    state = [f.col(_STATE).getField(name).alias(name) for name in fields]
    return rows.where(is_given).select(*key, *state, *cols(arrays))


def _checked(difflog: DiffLogConfig, count: int) -> list[Column]:
    """Return the number of updates of a key, and whether one of them has a fast version out of range."""
    arrays = [quoted(updates_name(number)) for number in range(1, count + 1)]
    sizes = [f"coalesce(size({array}), 0)" for array in arrays]
    # They are sorted by version.
    ends = [(f"get({array}, 0).F", f"get({array}, size({array}) - 1).F") for array in arrays]
    wrong = [f"coalesce({lowest} < 0 OR {highest} >= {difflog.multiplier}L, false)" for lowest, highest in ends]
    return [f.expr(" + ".join(sizes)).alias(UPDATES), f.expr(" OR ".join(wrong)).alias(WRONG_VERSION)]


def _expired_keys(difflog: DiffLogConfig, run: Run, frames: Mapping[str, DataFrame]) -> list[DataFrame]:
    """Return the keys of rows that are refused because they have expired: their old states are outputs too."""
    if not difflog.state.ttl_days:
        return []
    parts = []
    for frame in frames.values():
        expired = chunks.unusable(difflog).isNull() & _reason(difflog, run, frame).isNotNull()
        parts.append(frame.where(expired).select(*cols(difflog.entity.key), f.lit(True).alias(_GIVEN)))
    return parts


def _keys(difflog: DiffLogConfig, frames: Mapping[str, DataFrame]) -> DataFrame:
    """Return the keys of the chunks; a key may be there more than once."""
    usable = [frame.where(chunks.unusable(difflog).isNull()) for frame in frames.values()]
    names = cols(difflog.entity.key)
    return reduce(lambda one, other: one.union(other), [frame.select(*names) for frame in usable])


def _old_states(
    session: SparkSession,
    difflog: DiffLogConfig,
    table: StateTable,
    run: Run,
    frames: Mapping[str, DataFrame],
) -> tuple[DataFrame, tuple[str, ...], tuple[int, ...]]:
    """Read the files of the state table that may contain these keys; return states, paths, and buckets of the keys."""
    every = table.files(run.facts["state_version"])
    before = run.facts["outputs"].get("diff_log_0_state")
    if before is not None:
        paths, buckets = set(before["files"]), set(before.get("buckets", ()))
        files = [file for file in every if file.path in paths]
    else:
        files, buckets = table.files_for(_keys(difflog, frames), every)
    schema = table.schema() or _first_schema(difflog, frames)
    # Without the states of other keys, which would be shuffled too.
    few = layout.is_few(chunks.row_count(difflog, run.facts), files)
    states = table.read(session, files, schema, _keys(difflog, frames) if few else None)
    return without_expired(states, run), tuple(file.path for file in files), tuple(sorted(buckets))


def _options(difflog: DiffLogConfig, run: Run, source: str) -> StepOptions:
    return difflog.step_options(_log(difflog, source), rejoin_late=run.facts["rejoin_late"])


def _log(difflog: DiffLogConfig, source: str) -> SideLog | None:
    return next((log for log in difflog.logs if log.name == source), None)


def _updates(difflog: DiffLogConfig, source: str, usable: DataFrame) -> DataFrame:
    """Return the usable updates, without duplicates."""
    log = _log(difflog, source)
    has_id = log is not None and log.id and all(name in usable.columns for name in log.id)
    return _once(difflog, log, usable) if log is not None and has_id else usable


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
