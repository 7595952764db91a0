"""One step on DataFrames: from old states and updates to the signed log and the new states.

A step is a projection of a frame with one row per key that has the old state and the update: `advance` adds the new
state. So all steps of a run use one frame, without further joins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from trueup.errors import CheckFailed
from trueup.verbs.difflog.blocks import blocks, of_block
from trueup.verbs.difflog.merge import col, cols, merge_updates, plus_sql, quoted, time_columns
from trueup.verbs.difflog.model import DELETED, EXPIRES, FAST, SIGN, SLOW, VERSION, StepOptions


class Step(NamedTuple):
    """The result of a step: the signed log, the changed states, all states, and the updates that came too late."""

    diff: DataFrame
    patched_new_only: DataFrame
    patched: DataFrame
    late: DataFrame


@dataclass(frozen=True)
class StateColumns:
    """The names of the columns of a frame that hold a state."""

    fast: str
    slow: str
    deleted: str
    columns: Mapping[str, str]


@dataclass(frozen=True)
class StepColumns:
    """The names of the columns of a frame that hold a step: the states before and after it, and its updates."""

    before: StateColumns
    after: StateColumns
    # The fast version of the update; whether it is applied; why it is not; its values.
    given: str
    applied: str
    reason: str
    late: str


def step(previous: DataFrame, updates: DataFrame, options: StepOptions) -> tuple[DataFrame, DataFrame, DataFrame]:
    """Return the signed log, the changed states, and all states; `whole_step` also returns late updates."""
    return whole_step(previous, updates, options)[:3]


def whole_step(previous: DataFrame, updates: DataFrame, options: StepOptions) -> Step:
    """Return the result of a step.

    `previous` has the key, the fast version, `SlowVersion`, and the columns of the state; `updates` has the key, the
    fast version and any columns, including new ones. Updates older than the state are only in `late`.
    """
    states, before = old_states(previous, options)
    columns = updated_columns(updates, options)
    both = states.join(merged_updates(updates, columns, options, 1), list(options.key), "full_outer")
    frame, taken = advance(both, before, columns, options, 1)
    return Step(
        diff=diff(frame, taken, options),
        patched_new_only=new_only(frame, taken, options),
        patched=patched(frame, taken, options),
        late=late(frame, taken, options),
    )


def old_states(states: DataFrame, options: StepOptions, more: Sequence[Column] = ()) -> tuple[DataFrame, StateColumns]:
    """Return states as the left side of a frame (key, renamed columns, and `more`), and the names of their columns."""
    reserved = {*options.key, options.fast_version, SLOW, DELETED, FAST, EXPIRES}
    names = StateColumns(
        _old_name(options.fast_version),
        _old_name(SLOW),
        _old_name(DELETED),
        {name: _old_name(name) for name in states.columns if name not in reserved},
    )
    deleted = f.col(DELETED) if DELETED in states.columns else f.lit(False)
    frame = states.select(
        *cols(options.key),
        col(options.fast_version).cast("long").alias(names.fast),
        f.col(SLOW).cast("long").alias(names.slow),
        f.coalesce(deleted, f.lit(False)).alias(names.deleted),
        *[col(name).alias(renamed) for name, renamed in names.columns.items()],
        *more,
    )
    return frame, names


def updated_columns(updates: DataFrame, options: StepOptions) -> list[str]:
    """Return the columns of the state that these updates have."""
    reserved = {*options.key, options.fast_version, SLOW, DELETED, options.deleted}
    if options.order_by not in options.rules and options.order_by not in time_columns(options):
        # The column only orders updates.
        reserved.add(options.order_by)
    return [name for name in updates.columns if name not in reserved]


def merged_updates(
    updates: DataFrame, columns: Sequence[str], options: StepOptions, number: int, more: Sequence[Column] = ()
) -> DataFrame:
    """Return the updates merged to one row per key, with the number of the step in the column names.

    `more` are further aggregates over the updates of a key.
    """
    merged = merge_updates(updates, columns, options, more)
    selected = {*options.key, options.fast_version, options.deleted, *columns}
    return merged.select(
        *cols(options.key),
        col(options.fast_version).cast("long").alias(_in(number, options.fast_version)),
        *[
            f.coalesce(col(name).cast("boolean"), f.lit(False)).alias(_in(number, DELETED))
            for name in (options.deleted,)
            if name in updates.columns
        ],
        *[col(name).alias(_in(number, name)) for name in columns],
        *cols(name for name in merged.columns if name not in selected),
    )


def advance(
    frame: DataFrame, before: StateColumns, columns: Sequence[str], options: StepOptions, number: int
) -> tuple[DataFrame, StepColumns]:
    """Return the frame with the state after one step; `columns` are those of the updates."""
    types = _types(frame, before, columns, number)
    marked = _in(number, DELETED) in frame.columns
    version, applied, reason, newest = (
        _in(number, name) for name in (options.fast_version, "is applied", "reason", "newest")
    )
    judged = frame.select("*", *_judged(before, options, number, marked))
    both = judged.select(
        "*",
        f.struct(*[_old(before, name, types) for name in types]).alias("old") if types else f.lit(None).alias("old"),
        f.struct(*[_new(columns, name, types, number) for name in types]).alias("new")
        if types
        else f.lit(None).alias("new"),
    )
    # A column that the updates do not have keeps its value, unless its rule is an expression.
    touched = [name for name in types if marked or name in columns or options.rule(name).name == "expr"]
    after = StateColumns(
        _after(number, options.fast_version),
        _after(number, SLOW),
        _after(number, DELETED) if marked else before.deleted,
        {name: _after(number, name) if name in touched else before.columns[name] for name in types},
    )
    is_applied = col(applied)
    values = []
    for name in touched:
        old = f.col("old").getField(name)
        value = f.when(is_applied, f.expr(plus_sql(name, types[name], options))).otherwise(old)
        if marked:
            value = f.when(is_applied & col(_in(number, DELETED)), f.lit(None)).otherwise(value)
        values.append(value.alias(after.columns[name]))
    if marked:
        was = f.coalesce(col(before.deleted), f.lit(False))
        is_deleted = f.coalesce(col(_in(number, DELETED)), f.lit(False))
        values.append(f.when(is_applied, is_deleted).otherwise(was).alias(after.deleted))
    kept = [name for name in judged.columns if not name.endswith(f" in {number}") or name in (version, applied, reason)]
    late_values = f.when(col(reason).isNotNull(), f.struct(*[f.col("new").getField(n).alias(n) for n in columns]))
    slow = col(before.slow)
    stepped = both.select(
        *cols(kept),
        *([late_values.alias(_in(number, "late"))] if columns else []),
        f.when(is_applied, col(newest)).otherwise(col(before.fast)).alias(after.fast),
        f.when(is_applied, f.lit(1) + f.coalesce(slow, f.lit(0))).otherwise(slow).cast("long").alias(after.slow),
        *values,
    )
    return stepped, StepColumns(before, after, version, applied, reason, _in(number, "late") if columns else "")


def _judged(before: StateColumns, options: StepOptions, number: int, marked: bool) -> list[Column]:
    """Return the fast version that an update leads to, why it is not applied or NULL, and whether it is applied."""
    new, old = col(_in(number, options.fast_version)), col(before.fast)
    was_deleted = f.coalesce(col(before.deleted), f.lit(False))
    is_deleted = f.coalesce(col(_in(number, DELETED)), f.lit(False)) if marked else f.lit(False)
    older = f.coalesce(old > new, f.lit(False))
    # Side rows of a deleted entity are late too: there is no row that they could change.
    to_deleted = f.coalesce(was_deleted & (old == new) & ~is_deleted, f.lit(False))
    rejoined = older & ~was_deleted & ~is_deleted if options.rejoin_late else f.lit(False)
    reason = f.when(rejoined, f.lit(None)).when(to_deleted, f.lit("deleted")).when(older, f.lit("older"))
    return [
        f.when(rejoined, old).otherwise(new).alias(_in(number, "newest")),
        reason.alias(_in(number, "reason")),
        (new.isNotNull() & reason.isNull()).alias(_in(number, "is applied")),
    ]


def _types(frame: DataFrame, before: StateColumns, columns: Sequence[str], number: int) -> dict[str, str]:
    """Return the types of the columns of the state. Raises CheckFailed if the updates have another type."""
    types = {name: frame.schema[column].dataType.simpleString() for name, column in before.columns.items()}
    for name in columns:
        kind = frame.schema[_in(number, name)].dataType.simpleString()
        if types.setdefault(name, kind) != kind:
            raise CheckFailed(
                [f"column {name} has the type {types[name]} in the state and {kind} in the updates"],
                cure="cast the column in the updates to the type in the state",
            )
    return types


def _old(before: StateColumns, name: str, types: Mapping[str, str]) -> Column:
    column = before.columns.get(name)
    return (col(column) if column else f.lit(None).cast(types[name])).alias(name)


def _new(columns: Sequence[str], name: str, types: Mapping[str, str], number: int) -> Column:
    return (col(_in(number, name)) if name in columns else f.lit(None).cast(types[name])).alias(name)


def diff(frame: DataFrame, step: StepColumns, options: StepOptions, more: Sequence[Column] = ()) -> DataFrame:
    """Return the signed log of a step; `more` are further columns of the frame to add to each row."""
    before, after = step.before, step.after
    applied = frame.where(col(step.applied)).select(
        *cols(options.key),
        col(before.fast).alias("old_F"),
        col(after.fast).alias("new_F"),
        col(before.slow).alias("old_S"),
        f.coalesce(col(before.deleted), f.lit(False)).alias("old_deleted"),
        f.coalesce(col(after.deleted), f.lit(False)).alias("new_deleted"),
        *cols(dict.fromkeys((*before.columns.values(), *after.columns.values()))),
        *more,
    )
    blocked = applied.select("*", f.explode(blocks()).alias("Block")).where(of_block("when"))
    state = []
    for name, column in after.columns.items():
        old = quoted(before.columns[name]) if name in before.columns else "NULL"
        state.append(f.expr(of_block("state", {"old": old, "merged": quoted(column)})).alias(name))
    fast, slow = f.expr(of_block("fast")), f.expr(of_block("slow"))
    return blocked.select(
        *cols(options.key),
        f.expr(of_block("sign")).cast("tinyint").alias(SIGN),
        slow.alias(SLOW),
        fast.alias(options.fast_version),
        (f.lit(options.multiplier).cast("long") * slow + fast).alias(VERSION),
        "Block",
        *state,
        *cols(name for name in applied.columns[-len(more) :] if more),
    )


def new_only(frame: DataFrame, step: StepColumns, options: StepOptions) -> DataFrame:
    """Return the states that a step changed."""
    return states_at(frame.where(col(step.applied)), step.after, options)


def unchanged(frame: DataFrame, step: StepColumns, options: StepOptions) -> DataFrame:
    """Return the states that a step did not change."""
    is_unchanged = ~col(step.applied) & col(step.after.fast).isNotNull()
    return states_at(frame.where(is_unchanged), step.after, options)


def patched(frame: DataFrame, step: StepColumns, options: StepOptions) -> DataFrame:
    """Return all states after a step."""
    return states_at(frame.where(col(step.after.fast).isNotNull()), step.after, options)


def late(frame: DataFrame, step: StepColumns, options: StepOptions) -> DataFrame:
    """Return the updates that a step did not apply, with the reason."""
    return frame.where(col(step.reason).isNotNull()).select(
        *cols(options.key),
        col(step.given).alias(options.fast_version),
        col(step.before.fast).alias("newest_version"),
        col(step.reason).alias("reason"),
        *([f.col(f"{quoted(step.late)}.*")] if step.late else []),
    )


def states_at(frame: DataFrame, names: StateColumns, options: StepOptions, more: Sequence[Column] = ()) -> DataFrame:
    """Return the states in these columns of the frame, under their own names."""
    return frame.select(
        *cols(options.key),
        col(names.fast).alias(options.fast_version),
        col(names.slow).alias(SLOW),
        f.coalesce(col(names.deleted), f.lit(False)).alias(DELETED),
        *[col(column).alias(name) for name, column in names.columns.items()],
        *more,
    )


# Readable column names of a frame, which also appear in the plans of Spark; key columns keep their names.
def _old_name(name: str) -> str:
    return f"old {name}"


def _in(number: int, name: str) -> str:
    return f"{name} in {number}"


def _after(number: int, name: str) -> str:
    return f"{name} after {number}"
