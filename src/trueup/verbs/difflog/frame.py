"""The frame of a run: every key that the chunks name once, with its old state, all updates, and the state after each.

Each side is shuffled by key once, and the joins keep to that order, so the whole run is one pass over its inputs; the
outputs are projections of the frame. It is the same whenever it is made: a run that was killed makes it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from trueup.verbs.difflog import chunks
from trueup.verbs.difflog.manifest import Run
from trueup.verbs.difflog.merge import quoted
from trueup.verbs.difflog.model import DELETED, EXPIRES, SLOW, Difflog, SideLog, StepOptions
from trueup.verbs.difflog.state import StateTable
from trueup.verbs.difflog.step import Move, Place, advance, said, standing, told
from trueup.verbs.difflog.widen import Glue, glue, newest_told, said_before, unpacked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class RunFrame:
    """The frame, and where in it each step and its states are."""

    data: DataFrame
    keys: DataFrame
    first: Place
    moves: Mapping[str, Move]
    options: Mapping[str, StepOptions]
    refused: Mapping[str, DataFrame]
    glue: Glue
    # The files of the state table that may hold one of the keys.
    files: tuple[str, ...]

    def forget(self) -> None:
        """Let go of what was kept for the outputs."""
        self.data.unpersist()
        self.keys.unpersist()


def run_frame(session: Any, difflog: Difflog, table: StateTable, run: Run, frames: Mapping[str, DataFrame]) -> RunFrame:
    """Join everything that a run reads, and take all its steps."""
    keys = _keys(difflog, frames).persist()
    states, files = _old_states(session, difflog, table, run, keys, frames)
    options = {source: _options(difflog, run, source) for source in frames}
    updates = {source: _updates(difflog, run, source, frame) for source, frame in frames.items()}
    columns = {source: _slow_columns(difflog, source, frame, options[source]) for source, frame in updates.items()}
    visits = updates.get(difflog.entity.name)
    found = glue(difflog, states.schema, frames[difflog.entity.name] if visits is not None else None)
    some = next(iter(options.values()))
    old, first = standing(states, some, said_before(difflog, found, states.schema))
    data = keys.join(old, list(difflog.entity.key), "left")
    for number, (source, frame) in enumerate(updates.items(), 1):
        more = newest_told(found) if source == difflog.entity.name else []
        new = told(frame, columns[source], options[source], number, more)
        data = data.join(new, list(difflog.entity.key), "left")
    data = unpacked(data, found, f"{difflog.entity.fast_version} in 1")
    place, moves = first, {}
    for number, source in enumerate(updates, 1):
        data, moves[source] = advance(data, place, columns[source], options[source], number)
        place = moves[source].after
    refused = {source: _refused(difflog, run, frame) for source, frame in frames.items()}
    return RunFrame(data.persist(), keys, first, moves, options, refused, found, tuple(files))


def alive(states: DataFrame, run: Run) -> DataFrame:
    """Without the states whose time is over."""
    from pyspark.sql import functions as f

    if EXPIRES not in states.columns:
        return states
    today = f.lit(run.facts["today"]).cast("date")
    return states.where(f.col(EXPIRES).isNull() | (f.col(EXPIRES) >= today))


def _keys(difflog: Difflog, frames: Mapping[str, DataFrame]) -> DataFrame:
    """Every key that the chunks name, once."""
    from pyspark.sql import functions as f

    usable = [frame.where(chunks.unusable(difflog).isNull()) for frame in frames.values()]
    names = [f.col(quoted(name)) for name in difflog.entity.key]
    return reduce(lambda one, other: one.union(other), [each.select(*names) for each in usable]).distinct()


def _old_states(
    session: Any, difflog: Difflog, table: StateTable, run: Run, keys: DataFrame, frames: Mapping[str, DataFrame]
) -> tuple[DataFrame, list[str]]:
    """The states of these keys and perhaps some others, from the files that may hold them; and those files."""
    every = table.files(run.facts["state_version"])
    before = run.facts["outputs"].get("diff_log_0_state")
    if before is not None:
        wanted = set(before["files"])
        files = [each for each in every if each.path in wanted]
    else:
        files = table.files_for(keys, every)
    schema = table.schema(session) or _first_schema(difflog, frames)
    return alive(table.read(session, files, schema), run), [each.path for each in files]


def _options(difflog: Difflog, run: Run, source: str) -> StepOptions:
    log = _log(difflog, source)
    return difflog.step_options(order_by=log.order_by if log else "", rejoin_late=run.facts["rejoin_late"])


def _log(difflog: Difflog, source: str) -> SideLog | None:
    return next((log for log in difflog.logs if log.name == source), None)


def _updates(difflog: Difflog, run: Run, source: str, updates: DataFrame) -> DataFrame:
    """The updates that can be judged; a row that a chunk tells twice is one row."""
    log = _log(difflog, source)
    usable = updates.where(_reason(difflog, run, updates).isNull())
    if log and log.id and all(name in updates.columns for name in log.id):
        return _once(difflog, log, usable)
    return usable


def _refused(difflog: Difflog, run: Run, updates: DataFrame) -> DataFrame:
    """The updates that cannot be judged, with the reason."""
    return updates.withColumn("reason", _reason(difflog, run, updates)).where("reason IS NOT NULL")


def _reason(difflog: Difflog, run: Run, updates: DataFrame) -> Any:
    """Why an update cannot be judged, or NULL."""
    from pyspark.sql import functions as f

    reason = chunks.unusable(difflog)
    if difflog.state.ttl_days and difflog.state.ttl_column in updates.columns:
        due = f.date_add(f.to_date(quoted(difflog.state.ttl_column)), difflog.state.ttl_days)
        reason = f.coalesce(reason, f.when(due < f.lit(run.facts["today"]).cast("date"), "expired"))
    return reason


def _once(difflog: Difflog, log: SideLog, updates: DataFrame) -> DataFrame:
    """Each row of a log once; rows without an id all count."""
    from pyspark.sql import functions as f

    named = reduce(lambda one, other: one & other, [f.col(quoted(name)).isNotNull() for name in log.id])
    names = [quoted(name) for name in dict.fromkeys((*difflog.entity.key, *log.id))]
    rest = f.struct(*[f.col(quoted(name)) for name in updates.columns if quoted(name) not in names])
    # Should they differ after all, the same one is taken each time.
    once = updates.where(named).groupBy(*names).agg(f.max(rest).alias("rest")).select(*names, "rest.*")
    return once.unionByName(updates.where(~named))


def _slow_columns(difflog: Difflog, source: str, updates: DataFrame, options: StepOptions) -> list[str]:
    """The columns of the updates that are part of the slow state."""
    skip = set(difflog.entity.dropped)
    for log in difflog.logs:
        # What only names or orders the rows of a log is no part of the state.
        skip |= {*log.id, log.order_by} - set(difflog.rules) if log.name != source else set(log.id) - set(difflog.rules)
    return [name for name in said(updates, options) if name not in skip]


def _first_schema(difflog: Difflog, frames: Mapping[str, DataFrame]) -> StructType:
    """The columns of a state before there is one: key and versions."""
    from pyspark.sql.types import BooleanType, LongType, StructField, StructType

    some = next(iter(frames.values())).schema
    fields = [StructField(name, some[name].dataType) for name in difflog.entity.key]
    fields += [StructField(difflog.entity.fast_version, LongType()), StructField(SLOW, LongType())]
    return StructType([*fields, StructField(DELETED, BooleanType())])
