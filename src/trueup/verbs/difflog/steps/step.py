"""One step on DataFrames: from old states and updates to the signed log and the new states.

A step is a projection of a frame with one row per key that has the old state and the updates: `advance` adds the new
state. So all steps of a run use one frame, without further joins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from trueup.errors import CheckFailed
from trueup.verbs.difflog.model import DELETED, EXPIRES, FAST, SIGN, SINCE, SLOW, VERSION, StepOptions
from trueup.verbs.difflog.steps.columns import StateColumns, StepColumns
from trueup.verbs.difflog.steps.late import Judgement, judge_updates
from trueup.verbs.difflog.steps.merge import (
    ALL,
    NOTHING,
    col,
    collected,
    cols,
    element,
    folded_sql,
    plus_since_sql,
    plus_sql,
    quoted,
    replaces,
    since,
    time_columns,
)
from trueup.verbs.difflog.steps.rows import BLOCK, signed_columns
from trueup.verbs.difflog.steps.rows import states as state_columns
from trueup.verbs.difflog.steps.schemas import OutputSchemas
from trueup.verbs.difflog.steps.sent import mapped


class Step(NamedTuple):
    """The result of a step: the signed log, the changed states, all states, and the updates that came too late."""

    diff: DataFrame
    patched_new_only: DataFrame
    patched: DataFrame
    late: DataFrame


def step(previous: DataFrame, updates: DataFrame, options: StepOptions) -> tuple[DataFrame, DataFrame, DataFrame]:
    """Return the signed log, the changed states, and all states; `whole_step` also returns late updates."""
    return whole_step(previous, updates, options)[:3]


def whole_step(previous: DataFrame, updates: DataFrame, options: StepOptions) -> Step:
    """Return the result of a step.

    `previous` has the key, the fast version, `SlowVersion`, and the columns of the state; `updates` has the key, the
    fast version and any columns, including new ones. Updates older than the state are only in `late`.
    """
    states, before = old_states(previous, options)
    name = updates_name(1)
    collection = updates.select(*cols(options.key), element(updates, options).alias(name))
    collection = collection.groupBy(*cols(options.key)).agg(collected(name).alias(name))
    both = states.join(collection, list(options.key), "full_outer")
    frame, taken = advance(both, before, before.fast, updated_columns(updates, options), options, 1)
    reserved = [name for name in (SIGN, VERSION, BLOCK) if name in taken.after.columns]
    if reserved:
        raise CheckFailed(
            [f"the state has a column {name}, which is a column of the log" for name in reserved],
            cure="rename the column in the states and in the updates",
        )
    log = options.log_columns
    schemas = OutputSchemas(frame.schema, log)
    # Without columns that no output needs: the rows are sent to Python.
    rows = frame.drop(*(name for name in (taken.late, taken.newest) if name in frame.columns))
    changed, known = rows.where(col(taken.applied)), rows.where(col(taken.after.fast).isNotNull())
    of_states = schemas.states(taken.after)
    return Step(
        diff=mapped(changed, signed_columns, (taken, log), schemas.signed(taken)),
        patched_new_only=mapped(changed, state_columns, (taken.after, log), of_states),
        patched=mapped(known, state_columns, (taken.after, log), of_states),
        late=late(frame, taken, options),
    )


def old_states(states: DataFrame, options: StepOptions, more: Sequence[Column] = ()) -> tuple[DataFrame, StateColumns]:
    """Return states as the left side of a frame (key, renamed columns, and `more`), and the names of their columns."""
    reserved = {*options.key, options.fast_version, SLOW, DELETED, FAST, EXPIRES, SINCE}
    columns = [name for name in states.columns if name not in reserved]
    names = StateColumns(
        _old_name(options.fast_version),
        _old_name(SLOW),
        _old_name(DELETED),
        _old_name("deletion"),
        {name: _old_name(name) for name in columns},
        {name: _old_name(since(name)) for name in columns if replaces(name, options)},
    )
    fast = col(options.fast_version).cast("long")
    deleted = f.coalesce(f.col(DELETED) if DELETED in states.columns else f.lit(False), f.lit(False))
    frame = states.select(
        *cols(options.key),
        fast.alias(names.fast),
        f.col(SLOW).cast("long").alias(names.slow),
        deleted.alias(names.deleted),
        f.coalesce(version_of(states.columns, DELETED), f.when(deleted, fast)).alias(names.cleared),
        *[col(name).alias(renamed) for name, renamed in names.columns.items()],
        *[f.coalesce(version_of(states.columns, name), fast).alias(to) for name, to in names.since.items()],
        *more,
    )
    return frame, names


def version_of(columns: Sequence[str], name: str) -> Column:
    """Return the fast version in `Since` of states with these columns; NULL if it is that of the state."""
    return f.col(SINCE).getItem(name) if SINCE in columns else f.lit(None).cast("long")


def updated_columns(updates: DataFrame, options: StepOptions) -> list[str]:
    """Return the columns of the state that these updates have."""
    reserved = {*options.key, options.fast_version, SLOW, DELETED, options.deleted}
    if options.order_by not in options.rules and options.order_by not in time_columns(options):
        # The column only orders updates.
        reserved.add(options.order_by)
    return [name for name in updates.columns if name not in reserved]


def updates_name(number: int) -> str:
    """Return the column of a frame with the updates of a step as an array, from the oldest to the newest."""
    return _in(number, ALL)


def advance(
    frame: DataFrame, before: StateColumns, first_fast: str, columns: Sequence[str], options: StepOptions, number: int
) -> tuple[DataFrame, StepColumns]:
    """Return the frame with the state after one step.

    `first_fast` is the column with the fast version before the run, `columns` those of the updates.
    """
    types = _types(frame, before, columns, number)
    names = Judgement(
        *(_in(number, ALL), first_fast, before.fast, before.deleted, before.cleared, _in(number, "deletion")),
        _in(number, "cleared") if options.deletes else before.cleared,
        *(_in(number, name) for name in ("applied", "late")),
    )
    merged = _merged(judge_updates(frame, names, options), before, types, columns, options, names, number)
    # A column that the updates do not have keeps its value, unless its rule is an expression or the entity is deleted.
    touched = [name for name in types if options.deletes or name in columns or options.rule(name).name == "expr"]
    versions = [name for name in types if replaces(name, options)]
    # Only rows of the entity delete it, or bring it back.
    deleted = _after(number, DELETED) if options.of_entity else before.deleted
    after = StateColumns(
        *(_after(number, options.fast_version), _after(number, SLOW), deleted, names.now_cleared),
        {name: _after(number, name) if name in touched else before.columns[name] for name in types},
        {name: _after(number, since(name)) if name in touched else before.since[name] for name in versions},
    )
    taken = StepColumns(before, after, *(_in(number, name) for name in ("is applied", "late", "newest")))
    kept = [name for name in frame.columns if name != names.every]
    # Only the values of the fast supplier are taken from the newest update.
    kept += [taken.applied, taken.late, *([taken.newest] if options.of_entity else [])]
    kept += [names.now_cleared] if options.deletes else []
    slow, newest = col(before.slow), col(taken.newest).getField("F")
    has_updates, is_gone = col(_in(number, "has updates")), col(names.deletion).isNotNull()
    was_deleted = f.coalesce(col(before.deleted), f.lit(False))
    deleted_now = f.when(has_updates, f.lit(False)).otherwise(is_gone | was_deleted)
    stepped = merged.select(
        *cols(kept),
        f.greatest(col(before.fast), newest).alias(after.fast),
        f.when(col(taken.applied), 1 + f.coalesce(slow, f.lit(0))).otherwise(slow).cast("long").alias(after.slow),
        *([deleted_now.alias(after.deleted)] if options.of_entity else []),
        *_values(taken, types, touched, columns, options, has_updates, is_gone),
    )
    return stepped, taken


def _merged(
    judged: DataFrame,
    before: StateColumns,
    types: Mapping[str, str],
    columns: Sequence[str],
    options: StepOptions,
    names: Judgement,
    number: int,
) -> DataFrame:
    """Return the frame with the newest update, whether there are any, and the structs `old` and `new` to be merged."""
    applied, deletion = quoted(names.applied), quoted(names.deletion)
    some = f"coalesce(size({applied}), 0) > 0"
    tombstone = f"get(filter({quoted(names.every)}, e -> e.gone AND e.F = {deletion}), 0)"
    newest = (
        f"CASE WHEN {some} THEN get({applied}, size({applied}) - 1) WHEN {deletion} IS NOT NULL THEN {tombstone} END"
    )
    merged = judged.select(
        "*",
        f.expr(newest).alias(_in(number, "newest")),
        f.expr(some).alias(_in(number, "has updates")),
        f.expr(f"{some} OR {deletion} IS NOT NULL").alias(_in(number, "is applied")),
        f.expr(folded_sql(applied, {name: types[name] for name in columns}, options)).alias("given values"),
    )
    old, new = [], []
    for name, kind in types.items():
        fields = {name: (kind, before.columns.get(name))}
        if replaces(name, options):
            fields[since(name)] = ("bigint", before.since.get(name))
        for field, (kind_of_field, column) in fields.items():
            value = f.when(col(names.deletion).isNull(), col(column)) if column else f.lit(None).cast(kind_of_field)
            old.append(value.alias(field))
            added = f.col("given values").getField(field) if name in columns else f.lit(None).cast(kind_of_field)
            new.append(added.alias(field))
    if not types:
        return merged
    # An update older than the state is merged below it: the state is the newer of the two.
    below = f.expr(f"{quoted(_in(number, 'newest'))}.F < {quoted(before.fast)} AND {deletion} IS NULL")
    state, given = f.struct(*old), f.struct(*new)
    return merged.select(
        "*",
        f.when(below, given).otherwise(state).alias("old"),
        f.when(below, state).otherwise(given).alias("new"),
    )


def _values(
    taken: StepColumns,
    types: Mapping[str, str],
    touched: Sequence[str],
    columns: Sequence[str],
    options: StepOptions,
    has_updates: Column,
    is_gone: Column,
) -> list[Column]:
    """Return the columns of the state that a step touches, and the fast versions of their values."""
    values = []
    for name in touched:
        column = taken.before.columns.get(name)
        old = col(column) if column else f.lit(None).cast(types[name])
        value = f.when(~is_gone, old)
        if name in columns or options.rule(name).name == "expr":
            value = f.when(has_updates, f.expr(plus_sql(name, types[name], options, versioned=True))).otherwise(value)
        values.append(value.alias(taken.after.columns[name]))
        if name in taken.after.since:
            column = taken.before.since.get(name)
            version = col(column) if column else f.lit(None).cast("long")
            if name in columns:
                version = f.when(has_updates, f.expr(plus_since_sql(name))).otherwise(version)
            values.append(version.alias(taken.after.since[name]))
    return values


def _types(frame: DataFrame, before: StateColumns, columns: Sequence[str], number: int) -> dict[str, str]:
    """Return the types of the columns of the state. Raises CheckFailed if the updates have another type."""
    types = {name: frame.schema[column].dataType.simpleString() for name, column in before.columns.items()}
    updates: Any = frame.schema[_in(number, ALL)].dataType
    given = {field.name: field.dataType.simpleString() for field in updates.elementType["d"].dataType.fields}
    for name in columns:
        if types.setdefault(name, given[name]) != given[name]:
            raise CheckFailed(
                [f"column {name} has the type {types[name]} in the state and {given[name]} in the updates"],
                cure="cast the column in the updates to the type in the state",
            )
    return types


def is_late(step: StepColumns) -> Column:
    """Return whether a row of the frame has an update that the step did not apply."""
    return f.size(col(step.late)) > 0


def late(frame: DataFrame, step: StepColumns, options: StepOptions) -> DataFrame:
    """Return the updates that a step did not apply, as they were given, with the reason."""
    each = frame.where(is_late(step)).select(
        *cols(options.key), col(step.before.fast).alias("newest_version"), f.explode(col(step.late)).alias("e")
    )
    return each.select(
        *cols(options.key),
        f.col("e.F").alias(options.fast_version),
        "newest_version",
        f.col("e.reason").alias("reason"),
        "e.d.*",
    ).drop(NOTHING)


# Readable column names of a frame, which also appear in the plans of Spark; key columns keep their names.
def _old_name(name: str) -> str:
    return f"old {name}"


def _in(number: int, name: str) -> str:
    return f"{name} in {number}"


def _after(number: int, name: str) -> str:
    return f"{name} after {number}"
