"""Merges values: one rule per column, as Spark SQL over two structs named `old` and `new`.

The same SQL merges an update into a state and, inside a fold, several updates of one key into one. NULL means "no
value": it never replaces a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from trueup.verbs.difflog.model import Rule, StepOptions

# The order of the updates of a key while they are merged: the greatest is the newest.
RANK = "order of updates"


def quoted(name: str) -> str:
    """Return a column name quoted for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def col(name: str) -> Column:
    """Return a column by its exact name: dots and blanks are part of it."""
    return f.col(quoted(name))


def cols(names: Iterable[str]) -> list[Column]:
    """Return columns by their exact names."""
    return [col(name) for name in names]


def plus_sql(column: str, kind: str, options: StepOptions) -> str:
    """Return Spark SQL that merges one column of type `kind`, over structs `old` and `new`."""
    rule = _rule_of(column, options)
    old, new = f"old.{quoted(column)}", f"new.{quoted(column)}"
    if_one = f"CASE WHEN {new} IS NULL THEN {old} WHEN {old} IS NULL THEN {new}"
    if rule.name == "sum":
        text = f"{if_one} ELSE {old} + {new} END"
    elif rule.name in ("min", "max"):
        text = f"{'least' if rule.name == 'min' else 'greatest'}({old}, {new})"
    elif rule.name == "append":
        text = f"{if_one} ELSE concat({old}, {new}) END"
    elif rule.name == "union":
        text = f"array_distinct({if_one} ELSE concat({old}, {new}) END)"
    elif rule.name == "last":
        old_time, new_time = f"old.{quoted(rule.by)}", f"new.{quoted(rule.by)}"
        newer = f"{new} IS NOT NULL AND ({old} IS NULL OR {old_time} IS NULL OR {new_time} >= {old_time})"
        text = f"CASE WHEN {newer} THEN {new} ELSE coalesce({old}, {new}) END"
    elif rule.name == "expr":
        text = f"({rule.sql})"
    else:
        text = f"coalesce({new}, {old})"
    return f"CAST({text} AS {kind})"


def _rule_of(column: str, options: StepOptions) -> Rule:
    """Return the rule of a column; the default for the time column of a `last` rule is `max`."""
    if column not in options.rules and _ordered_by(column, options):
        return Rule("max")
    return options.rule(column)


def _update_value(column: str, columns: Sequence[str], options: StepOptions) -> str:
    """Return Spark SQL for a column of an update. A time column of `last` rules is NULL if all their values are."""
    if column in options.rules or not _ordered_by(column, options):
        return quoted(column)
    followers = [name for name in _ordered_by(column, options) if name in columns]
    has_value = " OR ".join(f"{quoted(name)} IS NOT NULL" for name in followers) or "false"
    return f"CASE WHEN {has_value} THEN {quoted(column)} END"


def _ordered_by(column: str, options: StepOptions) -> list[str]:
    return [name for name, rule in options.rules.items() if rule.name == "last" and rule.by == column]


def time_columns(options: StepOptions) -> set[str]:
    """Return the time columns of all `last` rules."""
    return {rule.by for rule in options.rules.values() if rule.name == "last"}


def merge_updates(
    updates: DataFrame, columns: Sequence[str], options: StepOptions, more: Sequence[Column] = ()
) -> DataFrame:
    """Return one row per key: its updates merged from the oldest to the newest, with the newest fast version.

    `more` are further aggregates over the updates of a key, which may use the column `RANK`.
    """
    fast = options.fast_version
    marks = [name for name in (options.deleted,) if name in updates.columns]
    order = [fast, *[name for name in (options.order_by,) if name in updates.columns and name != fast]]
    # Of two updates with the same order, a tombstone is the newer; otherwise the choice is deterministic.
    tie = f.xxhash64(*cols((*marks, *columns)))
    ranked = updates.withColumn(RANK, f.struct(*cols((*order, *marks)), tie.alias(_TIE)))
    parts = [f.max(quoted(fast)).alias(fast)]
    # Only the newest update decides whether the entity is deleted.
    parts += [f.max_by(col(name), f.col(RANK)).alias(name) for name in marks]
    if all(_rule_of(name, options).name in _AGGREGATES for name in columns):
        parts += [_aggregate(name, _type(updates, name), columns, options).alias(name) for name in columns]
        return ranked.groupBy(*cols(options.key)).agg(*parts, *more)
    data = f.struct(*[f.expr(_update_value(name, columns, options)).alias(name) for name in columns])
    pairs = f.array_sort(f.collect_list(f.struct(f.col(RANK), data.alias("d"))))
    grouped = ranked.groupBy(*cols(options.key)).agg(*parts, pairs.alias(_ALL), *more)
    fields = [f"'{_escaped(name)}', {plus_sql(name, _type(updates, name), options)}" for name in columns]
    every = quoted(_ALL)
    fold = (
        f"aggregate(slice({every}.d, 2, size({every})), {every}[0].d, (old, new) -> named_struct({', '.join(fields)}))"
    )
    folded = f.when(f.size(every) == 1, f.expr(f"{every}[0].d")).otherwise(f.expr(fold))
    return grouped.withColumn(_ALL, folded).select(
        *cols(name for name in grouped.columns if name != _ALL), f"{every}.*"
    )


# Rules that an aggregate function of Spark implements; the others fold the updates one by one.
_AGGREGATES = ("replace", "sum", "min", "max")
_TIE, _ALL = "tie", "all updates"


def _aggregate(name: str, kind: str, columns: Sequence[str], options: StepOptions) -> Column:
    """Return an aggregate that merges the updates of a key in one column; NULL is ignored."""
    rule, value = _rule_of(name, options).name, f.expr(_update_value(name, columns, options))
    if rule == "sum" and kind in ("float", "double"):
        # Added in sorted order: a repeated run must produce the same bits.
        every = f.array_sort(f.collect_list(value))
        added = f.aggregate(f.slice(every, 2, f.size(every)), every[0], lambda total, item: total + item)
        return f.when(f.size(every) > 0, added)
    if rule == "sum":
        return f.sum(value).cast(kind)
    if rule in ("min", "max"):
        return f.min(value) if rule == "min" else f.max(value)
    # max_by ignores rows whose rank is NULL.
    return f.max_by(value, f.when(value.isNotNull(), f.col(RANK)))


def _type(frame: DataFrame, column: str) -> str:
    return frame.schema[column].dataType.simpleString()


def _escaped(name: str) -> str:
    return name.replace("\\", "\\\\").replace("'", "\\'")
