"""Merges values: one rule per column, as Spark SQL over two structs named `old` and `new`.

The same SQL merges an update into a state and, inside a fold, several updates of one key into one. NULL means "no
value": it never replaces a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from trueup.verbs.difflog.model import Rule, StepOptions

# The updates of a key, as an array; a name that the configuration rejects.
ALL = "__trueup_all"
# The order of the updates of a key while they are merged: the greatest is the newest.
_RANK = "order of updates"
# A struct must not be empty.
NOTHING = "__trueup_nothing"


def quoted(name: str) -> str:
    """Return a column name quoted for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def col(name: str) -> Column:
    """Return a column by its exact name: dots and blanks are part of it."""
    return f.col(quoted(name))


def cols(names: Iterable[str]) -> list[Column]:
    """Return columns by their exact names."""
    return [col(name) for name in names]


def replaces(column: str, options: StepOptions) -> bool:
    """Return whether a new value of the column replaces an old one, so that the version of the value matters."""
    return _rule_of(column, options).name == "replace"


def since(column: str) -> str:
    """Return the name of the field with the fast version of a value."""
    return f"since {column}"


def plus_sql(column: str, kind: str, options: StepOptions, *, versioned: bool = False) -> str:
    """Return Spark SQL that merges one column of type `kind`, over structs `old` and `new`.

    `versioned` means that the structs have the fields `since`: of two values, the one of the newer version stays.
    """
    rule = _rule_of(column, options)
    old, new = f"old.{quoted(column)}", f"new.{quoted(column)}"
    if versioned and rule.name == "replace":
        return f"CASE WHEN {_is_replaced(column)} THEN {new} ELSE {old} END"
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


def plus_since_sql(column: str) -> str:
    """Return Spark SQL for the fast version of a value that `plus_sql` has merged."""
    old, new = (f"{side}.{quoted(since(column))}" for side in ("old", "new"))
    return f"CASE WHEN {_is_replaced(column)} THEN {new} ELSE {old} END"


def _is_replaced(column: str) -> str:
    old, new = f"old.{quoted(column)}", f"new.{quoted(column)}"
    not_older = f"new.{quoted(since(column))} >= old.{quoted(since(column))}"
    return f"{new} IS NOT NULL AND ({old} IS NULL OR {not_older})"


def _rule_of(column: str, options: StepOptions) -> Rule:
    """Return the rule of a column; the default for the time column of a `last` rule is `max`."""
    if column not in options.rules and _ordered_by(column, options):
        return Rule("max")
    return options.rule(column)


def _update_value(column: str, columns: Sequence[str], options: StepOptions, prefix: str = "") -> str:
    """Return Spark SQL for a column of an update. A time column of `last` rules is NULL if all their values are."""
    if column in options.rules or not _ordered_by(column, options):
        return prefix + quoted(column)
    followers = [name for name in _ordered_by(column, options) if name in columns]
    has_value = " OR ".join(f"{prefix}{quoted(name)} IS NOT NULL" for name in followers) or "false"
    return f"CASE WHEN {has_value} THEN {prefix}{quoted(column)} END"


def _ordered_by(column: str, options: StepOptions) -> list[str]:
    return [name for name, rule in options.rules.items() if rule.name == "last" and rule.by == column]


def time_columns(options: StepOptions) -> set[str]:
    """Return the time columns of all `last` rules."""
    return {rule.by for rule in options.rules.values() if rule.name == "last"}


def element(updates: DataFrame, options: StepOptions) -> Column:
    """Return an update as a struct: `F`, whether it deletes the entity (`gone`), all columns (`d`), and its `rank`."""
    skip = {*options.key, options.fast_version}
    columns = [name for name in updates.columns if name not in skip]
    fast = col(options.fast_version).cast("long")
    marked = options.of_entity and options.deleted in updates.columns
    gone = f.coalesce(col(options.deleted).cast("boolean"), f.lit(False)) if marked else f.lit(False)
    order = [col(options.order_by)] if options.order_by in columns else []
    # Of two updates with the same order, a tombstone is the newer; otherwise the choice is deterministic.
    tie = f.xxhash64(*cols(name for name in columns if "map<" not in _type(updates, name)), f.lit(0))
    rank = f.struct(fast.alias("f"), *[column.alias("o") for column in order], gone.alias("g"), tie.alias("t"))
    data = f.struct(*cols(columns), f.lit(None).cast("boolean").alias(NOTHING))
    return f.struct(fast.alias("F"), gone.alias("gone"), data.alias("d"), rank.alias("rank"))


def collected(name: str) -> Column:
    """Return the elements of a key in this column as an array, from the oldest to the newest; NULL if it has none."""
    every = f"collect_list({quoted(name)})"
    # No Python function: Spark would number its arguments, and compile the query of each run again.
    order = "CASE WHEN one.rank < other.rank THEN -1 WHEN one.rank > other.rank THEN 1 ELSE 0 END"
    by_rank = f"array_sort({every}, (one, other) -> {order})"
    return f.expr(f"CASE WHEN size({every}) = 1 THEN {every} WHEN size({every}) > 1 THEN {by_rank} END")


def folded_sql(array: str, types: Mapping[str, str], options: StepOptions) -> str:
    """Return Spark SQL that merges the elements of an array of updates: a struct of these columns and their `since`."""
    merged = [f"'{NOTHING}', true"]
    for name, kind in types.items():
        merged.append(f"{text(name)}, {plus_sql(name, kind, options, versioned=True)}")
        if replaces(name, options):
            merged.append(f"{text(since(name))}, {plus_since_sql(name)}")
    plain = f"transform({array}, e -> {_values_sql('e', types, options)})"
    fold = (
        f"aggregate(slice({plain}, 2, size({array})), get({plain}, 0), (old, new) -> named_struct({', '.join(merged)}))"
    )
    # Most keys have one update, which needs no array.
    one = _values_sql(f"get({array}, 0)", types, options)
    return f"CASE size({array}) WHEN 0 THEN NULL WHEN 1 THEN {one} ELSE {fold} END"


def _values_sql(update: str, types: Mapping[str, str], options: StepOptions) -> str:
    """Return Spark SQL for the values of an update, and their `since`, as a struct."""
    fields = [f"'{NOTHING}', true"]
    for name in types:
        value = _update_value(name, list(types), options, prefix=f"{update}.d.")
        fields.append(f"{text(name)}, {value}")
        if replaces(name, options):
            fields.append(f"{text(since(name))}, CASE WHEN {value} IS NOT NULL THEN {update}.F END")
    return f"named_struct({', '.join(fields)})"


def merge_updates(updates: DataFrame, columns: Sequence[str], options: StepOptions) -> DataFrame:
    """Return one row per key: its updates merged from the oldest to the newest, with the newest fast version."""
    fast = options.fast_version
    order = [fast, *[name for name in (options.order_by,) if name in updates.columns and name != fast]]
    # Of two updates with the same order, the choice is deterministic.
    ranked = updates.withColumn(_RANK, f.struct(*cols(order), f.xxhash64(*cols(columns)).alias(_TIE)))
    parts = [f.max(quoted(fast)).alias(fast)]
    if all(_rule_of(name, options).name in _AGGREGATES for name in columns):
        parts += [_aggregate(name, _type(updates, name), columns, options).alias(name) for name in columns]
        return ranked.groupBy(*cols(options.key)).agg(*parts)
    data = f.struct(*[f.expr(_update_value(name, columns, options)).alias(name) for name in columns])
    pairs = f.array_sort(f.collect_list(f.struct(f.col(_RANK), data.alias("d"))))
    grouped = ranked.groupBy(*cols(options.key)).agg(*parts, pairs.alias(ALL))
    fields = [f"{text(name)}, {plus_sql(name, _type(updates, name), options)}" for name in columns]
    fold = f"aggregate(slice({ALL}.d, 2, size({ALL})), {ALL}[0].d, (old, new) -> named_struct({', '.join(fields)}))"
    folded = f.when(f.size(ALL) == 1, f.expr(f"{ALL}[0].d")).otherwise(f.expr(fold))
    names = cols(name for name in grouped.columns if name != ALL)
    return grouped.withColumn(ALL, folded).select(*names, f"{ALL}.*")


# Rules that an aggregate function of Spark implements; the others fold the updates one by one.
_AGGREGATES = ("replace", "sum", "min", "max")
_TIE = "tie"


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
    return f.max_by(value, f.when(value.isNotNull(), f.col(_RANK)))


def _type(frame: DataFrame, column: str) -> str:
    return frame.schema[column].dataType.simpleString()


def text(name: str) -> str:
    """Return a name as a literal of Spark SQL."""
    return "'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'"
