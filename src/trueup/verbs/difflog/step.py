"""One step of the diff: previous states and updates in, the signed log and the patched states out. DataFrames only.

A step is a projection of a frame that has every key once, with the state before it and the update beside each other:
`advance` adds the state after it. So the steps of a run follow one another in one frame, without another join.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from trueup.errors import CheckFailed
from trueup.verbs.difflog.blocks import blocks, of_block
from trueup.verbs.difflog.merge import clocks, merge_updates, plus_sql, quoted
from trueup.verbs.difflog.model import DELETED, EXPIRES, FAST, SIGN, SLOW, VERSION, StepOptions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class Step(NamedTuple):
    """What a step brings forth; the first three are its result, `late` is what it kept aside."""

    diff: DataFrame
    patched_new_only: DataFrame
    patched: DataFrame
    late: DataFrame


@dataclass(frozen=True)
class Place:
    """Where a state stands in a frame: the names of the columns that hold it."""

    fast: str
    slow: str
    deleted: str
    columns: Mapping[str, str]


@dataclass(frozen=True)
class Move:
    """One step within a frame: the states before and after it, and the columns that tell what became of the update."""

    before: Place
    after: Place
    given: str
    fresh: str
    aside: str
    late: str


def step(previous: DataFrame, updates: DataFrame, options: StepOptions) -> tuple[DataFrame, DataFrame, DataFrame]:
    """The diff, the new states only, and all states after the step.

    `previous` has the key, the fast version, `SlowVersion`, and the state's columns; `updates` has the key, the fast
    version and any columns, also new ones. Updates older than the state make no diff: `whole_step` tells them.
    """
    return whole_step(previous, updates, options)[:3]


def whole_step(previous: DataFrame, updates: DataFrame, options: StepOptions) -> Step:
    """The step with the updates that were too late."""
    states, place = standing(previous, options)
    columns = said(updates, options)
    both = states.join(told(updates, columns, options, 1), list(options.key), "full_outer")
    frame, move = advance(both, place, columns, options, 1)
    return Step(
        diff=diff(frame, move, options),
        patched_new_only=new_only(frame, move, options),
        patched=patched(frame, move, options),
        late=late(frame, move, options),
    )


def standing(states: DataFrame, options: StepOptions, more: Sequence[Column] = ()) -> tuple[DataFrame, Place]:
    """States as the left side of a frame: key, renamed columns, and whatever else is asked; and where they stand."""
    from pyspark.sql import functions as f

    ours = {*options.key, options.fast_version, SLOW, DELETED, FAST, EXPIRES}
    place = Place(
        _at_first(options.fast_version),
        _at_first(SLOW),
        _at_first(DELETED),
        {name: _at_first(name) for name in states.columns if name not in ours},
    )
    deleted = f.col(DELETED) if DELETED in states.columns else f.lit(False)
    frame = states.select(
        *_key(options),
        f.col(quoted(options.fast_version)).cast("long").alias(place.fast),
        f.col(SLOW).cast("long").alias(place.slow),
        f.coalesce(deleted, f.lit(False)).alias(place.deleted),
        *[f.col(quoted(name)).alias(there) for name, there in place.columns.items()],
        *more,
    )
    return frame, place


def said(updates: DataFrame, options: StepOptions) -> list[str]:
    """The columns of the state that these updates speak of."""
    ours = {*options.key, options.fast_version, SLOW, DELETED, options.deleted}
    if options.order_by not in options.rules and options.order_by not in clocks(options):
        # It only says which of two updates is the newer.
        ours.add(options.order_by)
    return [name for name in updates.columns if name not in ours]


def told(
    updates: DataFrame, columns: Sequence[str], options: StepOptions, number: int, more: Sequence[Column] = ()
) -> DataFrame:
    """One row a key of what the updates say, under names that tell the step; `more` are further aggregates."""
    from pyspark.sql import functions as f

    merged = merge_updates(updates, columns, options, more)
    ours = {*options.key, options.fast_version, options.deleted, *columns}
    return merged.select(
        *_key(options),
        f.col(quoted(options.fast_version)).cast("long").alias(_in(number, options.fast_version)),
        *[
            f.coalesce(f.col(quoted(name)).cast("boolean"), f.lit(False)).alias(_in(number, DELETED))
            for name in (options.deleted,)
            if name in updates.columns
        ],
        *[f.col(quoted(name)).alias(_in(number, name)) for name in columns],
        *[f.col(quoted(name)) for name in merged.columns if name not in ours],
    )


def advance(
    frame: DataFrame, before: Place, columns: Sequence[str], options: StepOptions, number: int
) -> tuple[DataFrame, Move]:
    """The frame with the state after one step; `columns` are those that the step's updates speak of."""
    from pyspark.sql import functions as f

    types = _types(frame, before, columns, number)
    marked = _in(number, DELETED) in frame.columns
    given, fresh, aside, newest = (_in(number, name) for name in (options.fast_version, "fresh", "aside", "newest"))
    judged = frame.select("*", *_judged(before, options, number, marked))
    both = judged.select(
        "*",
        f.struct(*[_old(before, name, types) for name in types]).alias("old") if types else f.lit(None).alias("old"),
        f.struct(*[_new(columns, name, types, number) for name in types]).alias("new")
        if types
        else f.lit(None).alias("new"),
    )
    # A column that the updates do not speak of stays, unless an expression makes something of it.
    touched = [name for name in types if marked or name in columns or options.rule(name).name == "expr"]
    after = Place(
        _after(number, options.fast_version),
        _after(number, SLOW),
        _after(number, DELETED) if marked else before.deleted,
        {name: _after(number, name) if name in touched else before.columns[name] for name in types},
    )
    is_new = f.col(quoted(fresh))
    values = []
    for name in touched:
        old = f.col("old").getField(name)
        value = f.when(is_new, f.expr(plus_sql(name, types[name], options))).otherwise(old)
        if marked:
            value = f.when(is_new & f.col(quoted(_in(number, DELETED))), f.lit(None)).otherwise(value)
        values.append(value.alias(after.columns[name]))
    if marked:
        was = f.coalesce(f.col(quoted(before.deleted)), f.lit(False))
        is_gone = f.coalesce(f.col(quoted(_in(number, DELETED))), f.lit(False))
        values.append(f.when(is_new, is_gone).otherwise(was).alias(after.deleted))
    kept = [name for name in judged.columns if not name.endswith(f" in {number}") or name in (given, fresh, aside)]
    left = f.when(f.col(quoted(aside)).isNotNull(), f.struct(*[f.col("new").getField(n).alias(n) for n in columns]))
    slow = f.col(quoted(before.slow))
    moved = both.select(
        *[f.col(quoted(name)) for name in kept],
        *([left.alias(_in(number, "late"))] if columns else []),
        f.when(is_new, f.col(quoted(newest))).otherwise(f.col(quoted(before.fast))).alias(after.fast),
        f.when(is_new, f.lit(1) + f.coalesce(slow, f.lit(0))).otherwise(slow).cast("long").alias(after.slow),
        *values,
    )
    return moved, Move(before, after, given, fresh, aside, _in(number, "late") if columns else "")


def _judged(before: Place, options: StepOptions, number: int, marked: bool) -> list[Column]:
    """Whether there is an update, whether it counts, and the fast version that it leads to."""
    from pyspark.sql import functions as f

    given, old = f.col(quoted(_in(number, options.fast_version))), f.col(quoted(before.fast))
    was_deleted = f.coalesce(f.col(quoted(before.deleted)), f.lit(False))
    is_deleted = f.coalesce(f.col(quoted(_in(number, DELETED))), f.lit(False)) if marked else f.lit(False)
    older = f.coalesce(old > given, f.lit(False))
    # Side rows of a deleted entity are kept aside too: nothing stands that they could change.
    gone = f.coalesce(was_deleted & (old == given) & ~is_deleted, f.lit(False))
    rejoined = older & ~was_deleted & ~is_deleted if options.rejoin_late else f.lit(False)
    aside = f.when(rejoined, f.lit(None)).when(gone, f.lit("deleted")).when(older, f.lit("older"))
    return [
        f.when(rejoined, old).otherwise(given).alias(_in(number, "newest")),
        aside.alias(_in(number, "aside")),
        (given.isNotNull() & aside.isNull()).alias(_in(number, "fresh")),
    ]


def _types(frame: DataFrame, before: Place, columns: Sequence[str], number: int) -> dict[str, str]:
    """The type of every column of the state; where both the state and the updates have one, they must agree."""
    found = {name: frame.schema[there].dataType.simpleString() for name, there in before.columns.items()}
    for name in columns:
        kind = frame.schema[_in(number, name)].dataType.simpleString()
        if found.setdefault(name, kind) != kind:
            raise CheckFailed(
                [f"column {name} has the type {found[name]} in the state and {kind} in the updates"],
                cure="cast it in the chunks, so that both agree",
            )
    return found


def _old(before: Place, name: str, types: Mapping[str, str]) -> Column:
    from pyspark.sql import functions as f

    there = before.columns.get(name)
    return (f.col(quoted(there)) if there else f.lit(None).cast(types[name])).alias(name)


def _new(columns: Sequence[str], name: str, types: Mapping[str, str], number: int) -> Column:
    from pyspark.sql import functions as f

    return (f.col(quoted(_in(number, name))) if name in columns else f.lit(None).cast(types[name])).alias(name)


def diff(frame: DataFrame, move: Move, options: StepOptions, more: Sequence[Column] = ()) -> DataFrame:
    """The signed versions of a step; `more` are further columns of the frame that each of them carries."""
    from pyspark.sql import functions as f

    before, after = move.before, move.after
    news = frame.where(f.col(quoted(move.fresh))).select(
        *_key(options),
        f.col(quoted(before.fast)).alias("old_F"),
        f.col(quoted(after.fast)).alias("new_F"),
        f.col(quoted(before.slow)).alias("old_S"),
        f.coalesce(f.col(quoted(before.deleted)), f.lit(False)).alias("old_deleted"),
        f.coalesce(f.col(quoted(after.deleted)), f.lit(False)).alias("new_deleted"),
        *[f.col(quoted(there)) for there in dict.fromkeys((*before.columns.values(), *after.columns.values()))],
        *more,
    )
    parts = news.select("*", f.explode(blocks()).alias("Block")).where(of_block("when"))
    state = []
    for name, there in after.columns.items():
        old = quoted(before.columns[name]) if name in before.columns else "NULL"
        state.append(f.expr(of_block("state", {"old": old, "merged": quoted(there)})).alias(name))
    fast, slow = f.expr(of_block("fast")), f.expr(of_block("slow"))
    return parts.select(
        *_key(options),
        f.expr(of_block("sign")).cast("tinyint").alias(SIGN),
        slow.alias(SLOW),
        fast.alias(options.fast_version),
        (f.lit(options.multiplier).cast("long") * slow + fast).alias(VERSION),
        "Block",
        *state,
        *[f.col(quoted(name)) for name in news.columns[-len(more) :] if more],
    )


def new_only(frame: DataFrame, move: Move, options: StepOptions) -> DataFrame:
    """The states that a step has changed."""
    from pyspark.sql import functions as f

    return states_at(frame.where(f.col(quoted(move.fresh))), move.after, options)


def unchanged(frame: DataFrame, move: Move, options: StepOptions) -> DataFrame:
    """The states that a step left as they were."""
    from pyspark.sql import functions as f

    still = ~f.col(quoted(move.fresh)) & f.col(quoted(move.after.fast)).isNotNull()
    return states_at(frame.where(still), move.after, options)


def patched(frame: DataFrame, move: Move, options: StepOptions) -> DataFrame:
    """All states after a step."""
    from pyspark.sql import functions as f

    return states_at(frame.where(f.col(quoted(move.after.fast)).isNotNull()), move.after, options)


def late(frame: DataFrame, move: Move, options: StepOptions) -> DataFrame:
    """The updates that a step kept aside, with the reason."""
    from pyspark.sql import functions as f

    return frame.where(f.col(quoted(move.aside)).isNotNull()).select(
        *_key(options),
        f.col(quoted(move.given)).alias(options.fast_version),
        f.col(quoted(move.before.fast)).alias("newest_version"),
        f.col(quoted(move.aside)).alias("reason"),
        *([f.col(f"{quoted(move.late)}.*")] if move.late else []),
    )


def states_at(frame: DataFrame, place: Place, options: StepOptions, more: Sequence[Column] = ()) -> DataFrame:
    """The states that stand at a place of the frame, under their own names."""
    from pyspark.sql import functions as f

    return frame.select(
        *_key(options),
        f.col(quoted(place.fast)).alias(options.fast_version),
        f.col(quoted(place.slow)).alias(SLOW),
        f.coalesce(f.col(quoted(place.deleted)), f.lit(False)).alias(DELETED),
        *[f.col(quoted(there)).alias(name) for name, there in place.columns.items()],
        *more,
    )


def _key(options: StepOptions) -> list[Column]:
    from pyspark.sql import functions as f

    return [f.col(quoted(name)) for name in options.key]


# Columns of a frame say in their names what they hold, and so in Spark's plans; a key keeps its own.
def _at_first(name: str) -> str:
    return f"{name} at first"


def _in(number: int, name: str) -> str:
    return f"{name} in {number}"


def _after(number: int, name: str) -> str:
    return f"{name} after {number}"
