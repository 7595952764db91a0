"""The operation `+` on states: one rule a column, written as Spark SQL over two structs named `old` and `new`.

The same text serves to merge an update into a state and, inside a fold, many updates of one key into one. A NULL is
"nothing said": it never wins over a value, and two of them stay NULL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trueup.verbs.difflog.model import Rule, StepOptions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


# The order of the updates of a key, while they are merged: the greatest is the newest.
RANK = "order of updates"


def quoted(name: str) -> str:
    """A column name as Spark SQL wants it."""
    return "`" + name.replace("`", "``") + "`"


def plus_sql(column: str, kind: str, options: StepOptions) -> str:
    """`new + old` for one column of the type `kind`, over structs `old` and `new`."""
    rule = _rule_of(column, options)
    old, new = f"old.{quoted(column)}", f"new.{quoted(column)}"
    only_one = f"CASE WHEN {new} IS NULL THEN {old} WHEN {old} IS NULL THEN {new}"
    if rule.name == "sum":
        text = f"{only_one} ELSE {old} + {new} END"
    elif rule.name in ("min", "max"):
        text = f"{'least' if rule.name == 'min' else 'greatest'}({old}, {new})"
    elif rule.name == "append":
        text = f"{only_one} ELSE concat({old}, {new}) END"
    elif rule.name == "union":
        text = f"array_distinct({only_one} ELSE concat({old}, {new}) END)"
    elif rule.name == "last":
        then, now = f"old.{quoted(rule.by)}", f"new.{quoted(rule.by)}"
        newer = f"{new} IS NOT NULL AND ({old} IS NULL OR {then} IS NULL OR {now} >= {then})"
        text = f"CASE WHEN {newer} THEN {new} ELSE coalesce({old}, {new}) END"
    elif rule.name == "expr":
        text = f"({rule.sql})"
    else:
        text = f"coalesce({new}, {old})"
    return f"CAST({text} AS {kind})"


def _rule_of(column: str, options: StepOptions) -> Rule:
    """A column that others are ordered by keeps the latest time, unless a rule was given for it."""
    if column not in options.rules and _ordered_by(column, options):
        return Rule("max")
    return options.rule(column)


def _said(column: str, columns: Sequence[str], options: StepOptions) -> str:
    """A column of an update. The time of a value counts only with a value: else no news would make older news stale."""
    if column in options.rules or not _ordered_by(column, options):
        return quoted(column)
    followers = [name for name in _ordered_by(column, options) if name in columns]
    says = " OR ".join(f"{quoted(name)} IS NOT NULL" for name in followers) or "false"
    return f"CASE WHEN {says} THEN {quoted(column)} END"


def _ordered_by(column: str, options: StepOptions) -> list[str]:
    return [name for name, rule in options.rules.items() if rule.name == "last" and rule.by == column]


def clocks(options: StepOptions) -> set[str]:
    """The time columns of all `last` rules."""
    return {rule.by for rule in options.rules.values() if rule.name == "last"}


def merge_updates(
    updates: DataFrame, columns: Sequence[str], options: StepOptions, more: Sequence[Column] = ()
) -> DataFrame:
    """One row a key: its updates merged from the oldest to the newest, with the newest fast version.

    `more` are further aggregates over the updates of a key; they may use the column `RANK`, which is greatest in
    the newest update.
    """
    from pyspark.sql import functions as f

    fast = options.fast_version
    marks = [name for name in (options.deleted,) if name in updates.columns]
    order = [fast, *[name for name in (options.order_by,) if name in updates.columns and name != fast]]
    # Of two updates with one order a tombstone is the newer, else the same one whenever it is asked.
    tie = f.xxhash64(*[f.col(quoted(name)) for name in (*marks, *columns)])
    ranked = updates.withColumn(RANK, f.struct(*[f.col(quoted(name)) for name in (*order, *marks)], tie.alias(_TIE)))
    parts = [f.max(quoted(fast)).alias(fast)]
    # Whether it is deleted is said by the newest update alone.
    parts += [f.max_by(f.col(quoted(name)), f.col(RANK)).alias(name) for name in marks]
    if all(_rule_of(name, options).name in _AGGREGATES for name in columns):
        parts += [_aggregate(name, _type(updates, name), columns, options).alias(name) for name in columns]
        return ranked.groupBy(*_key(options)).agg(*parts, *more)
    data = f.struct(*[f.expr(_said(name, columns, options)).alias(name) for name in columns])
    pairs = f.array_sort(f.collect_list(f.struct(f.col(RANK), data.alias("d"))))
    grouped = ranked.groupBy(*_key(options)).agg(*parts, pairs.alias(_ALL), *more)
    fields = [f"'{_escaped(name)}', {plus_sql(name, _type(updates, name), options)}" for name in columns]
    every = quoted(_ALL)
    fold = (
        f"aggregate(slice({every}.d, 2, size({every})), {every}[0].d, (old, new) -> named_struct({', '.join(fields)}))"
    )
    folded = f.when(f.size(every) == 1, f.expr(f"{every}[0].d")).otherwise(f.expr(fold))
    return grouped.withColumn(_ALL, folded).select(
        *[f.col(quoted(name)) for name in grouped.columns if name != _ALL], f"{every}.*"
    )


# Rules whose merge of many updates is an aggregate of Spark's own; the others fold the updates one by one.
_AGGREGATES = ("replace", "sum", "min", "max")
_TIE, _ALL = "tie", "all updates"


def _aggregate(name: str, kind: str, columns: Sequence[str], options: StepOptions) -> Column:
    """The updates of a key merged in one column; NULL is nothing said here too."""
    from pyspark.sql import functions as f

    rule, value = _rule_of(name, options).name, f.expr(_said(name, columns, options))
    if rule == "sum" and kind in ("float", "double"):
        # Added up in one order, whatever order they come in: a repeated run must say the same to the last bit.
        every = f.array_sort(f.collect_list(value))
        added = f.aggregate(f.slice(every, 2, f.size(every)), every[0], lambda total, each: total + each)
        return f.when(f.size(every) > 0, added)
    if rule == "sum":
        return f.sum(value).cast(kind)
    if rule in ("min", "max"):
        return f.min(value) if rule == "min" else f.max(value)
    # The aggregate passes over rows whose rank is NULL.
    return f.max_by(value, f.when(value.isNotNull(), f.col(RANK)))


def _key(options: StepOptions) -> list[Column]:
    from pyspark.sql import functions as f

    return [f.col(quoted(name)) for name in options.key]


def _type(frame: DataFrame, column: str) -> str:
    return frame.schema[column].dataType.simpleString()


def _escaped(name: str) -> str:
    return name.replace("\\", "\\\\").replace("'", "\\'")
