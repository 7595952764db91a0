"""The operation `+` on states: one rule a column, written as Spark SQL over two structs named `old` and `new`.

The same text serves to merge an update into a state and, inside a fold, many updates of one key into one. A NULL is
"nothing said": it never wins over a value, and two of them stay NULL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trueup.difflog.model import Rule, StepOptions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType


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


def plus(columns: Sequence[str], schema: StructType, options: StepOptions) -> list[Column]:
    """`new + old` for all these columns of a frame that has the structs `old` and `new`."""
    from pyspark.sql import functions as f

    return [f.expr(plus_sql(name, schema[name].dataType.simpleString(), options)).alias(name) for name in columns]


def merge_updates(updates: DataFrame, columns: Sequence[str], options: StepOptions) -> DataFrame:
    """One row a key: its updates folded from the oldest to the newest, with the newest fast version."""
    from pyspark.sql import functions as f

    fast = options.fast_version
    marks = [name for name in (options.deleted,) if name in updates.columns]
    order = [fast, *[name for name in (options.order_by,) if name in updates.columns and name != fast]]
    ordering = f.struct(*[f.col(quoted(name)) for name in order])
    data = f.struct(*[f.expr(_said(name, columns, options)).alias(name) for name in (*marks, *columns)])
    grouped = updates.groupBy(*[f.col(quoted(name)) for name in options.key]).agg(
        f.max(quoted(fast)).alias(fast),
        f.array_sort(f.collect_list(f.struct(ordering.alias("o"), data.alias("d")))).alias("all"),
    )
    fields = [f"'{_escaped(name)}', {plus_sql(name, _type(updates, name), options)}" for name in columns]
    if marks:
        # Whether it is deleted is said by the newest update alone.
        fields.insert(0, f"'{_escaped(marks[0])}', new.{quoted(marks[0])}")
    fold = f"aggregate(slice(all.d, 2, size(all)), all[0].d, (old, new) -> named_struct({', '.join(fields)}))"
    folded = f.when(f.size("all") == 1, f.expr("all[0].d")).otherwise(f.expr(fold))
    merged = grouped.select(*[f.col(quoted(name)) for name in (*options.key, fast)], folded.alias("merged"))
    return merged.select(*[f.col(quoted(name)) for name in (*options.key, fast)], "merged.*")


def _type(frame: DataFrame, column: str) -> str:
    return frame.schema[column].dataType.simpleString()


def _escaped(name: str) -> str:
    return name.replace("\\", "\\\\").replace("'", "\\'")
