"""Adds the columns of the fast supplier to the log: every signed row gets the values of its fast version.

At most two fast versions of a key are known in a run: that of its old state, and the newest one in the visits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from trueup.errors import CheckFailed
from trueup.verbs.difflog.model import FAST, SLOW, VERSION, DiffLogConfig
from trueup.verbs.difflog.steps.merge import col, cols, quoted
from trueup.verbs.difflog.steps.step import version_of

# Columns of the frame with these two fast versions.
_OLD, _NEW = f"{VERSION} of the old state", f"{VERSION} of the visits"


@dataclass(frozen=True)
class Glue:
    """The columns of the fast supplier that the old states have, and those that the visits have."""

    old: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All columns, each once."""
        return tuple(dict.fromkeys((*self.old, *self.new)))

    def columns(self) -> list[Column]:
        """Return the columns of the frame with the values of the fast supplier; versions first."""
        names = [_OLD, _NEW, *map(_old_name, self.old), *map(_new_name, self.new)]
        return cols(names)

    def exact(self, name: str, version: str) -> str:
        """Return Spark SQL for the value of a column at exactly this version."""
        return (
            f"CASE WHEN {version} = {quoted(_NEW)} THEN {self._value(name, new=True)}"
            f" WHEN {version} = {quoted(_OLD)} THEN {self._value(name, new=False)} END"
        )

    def before(self, name: str) -> str:
        """Return Spark SQL for the value of a column in the old state."""
        return self._value(name, new=False)

    def after(self, name: str) -> str:
        """Return Spark SQL for the value of a column in the new state: that of the newest version."""
        is_new = f"{quoted(_NEW)} >= coalesce({quoted(_OLD)}, {quoted(_NEW)})"
        return f"CASE WHEN {is_new} THEN {self._value(name, new=True)} ELSE {self._value(name, new=False)} END"

    def _value(self, name: str, *, new: bool) -> str:
        if name not in (self.new if new else self.old):
            return "NULL"
        return quoted(_new_name(name) if new else _old_name(name))


def glue(difflog: DiffLogConfig, state: StructType, visits: DataFrame | None) -> Glue:
    """Return the columns to add. Raises CheckFailed if a column has different types in the state and the visits."""
    kind = state[FAST].dataType if FAST in state.names else StructType([])
    assert isinstance(kind, StructType)
    old = {field.name: field.dataType for field in kind.fields if field.name != "nothing"}
    names = (*difflog.entity.dropped, *difflog.entity.kept)
    new = {name: visits.schema[name].dataType for name in names if visits is not None and name in visits.columns}
    wrong = [
        f"column {name} has the type {old[name].simpleString()} in the state and {new[name].simpleString()} in the"
        " chunks"
        for name in old
        if name in new and old[name] != new[name]
    ]
    if wrong:
        raise CheckFailed(wrong, cure="cast the column in the chunks to the type in the state")
    return Glue(tuple(old), tuple(new))


def old_values(difflog: DiffLogConfig, values: Glue, state: StructType) -> list[Column]:
    """Return the values of the fast supplier in the old states, and their version, as columns."""
    if FAST not in state.names:
        return [f.lit(None).cast("long").alias(_OLD)]
    fast = f.coalesce(version_of(state.names, FAST), col(difflog.entity.fast_version).cast("long"))
    version = f.when(f.col(FAST).isNotNull(), fast)
    return [version.alias(_OLD), *[f.col(FAST).getField(name).alias(_old_name(name)) for name in values.old]]


def unpacked(frame: DataFrame, values: Glue, newest: str) -> DataFrame:
    """Return the frame with the values of the newest visit as separate columns; `newest` is its column, if any."""
    kept = cols(name for name in frame.columns if name != newest)
    if not newest:
        return frame.withColumn(_NEW, f.lit(None).cast("long"))
    visit = col(newest)
    return frame.select(
        *kept,
        visit.getField("F").alias(_NEW),
        *[visit.getField("d").getField(name).alias(_new_name(name)) for name in values.new],
    )


def fast_state(values: Glue, *, old: bool = False) -> Column | None:
    """Return the column `Fast` of the new states, or of the old ones: the values of the fast supplier."""
    if not values.names:
        return None
    known = f.expr(
        f"{quoted(_OLD)} IS NOT NULL" if old else f"{quoted(_NEW)} IS NOT NULL OR {quoted(_OLD)} IS NOT NULL"
    )
    value = values.before if old else values.after
    struct = f.struct(*[f.expr(value(name)).alias(name) for name in values.names])
    return f.when(known, struct).alias(FAST)


def fast_version_of_values(*, old: bool = False) -> dict[str, Column]:
    """Return the fast version of the values of the fast supplier in the new states, or in the old ones."""
    return {FAST: col(_OLD) if old else f.greatest(col(_OLD), col(_NEW))}


def widen(
    diff: DataFrame, columns: Sequence[str], difflog: DiffLogConfig, values: Glue, *, of_visits: bool
) -> DataFrame:
    """Return the log (its `columns`) with the dropped columns. Compensations have the values of the fast supplier.

    A row that cancels a state has the values of that state: in the step of the visits those before it.
    """
    version = quoted(difflog.entity.fast_version)
    compensation = f.col(SLOW) == 0
    cancels_old = (f.col("Block") == 1) if of_visits else f.lit(False)
    wide: list[Column] = []
    for name in columns:
        value = col(name)
        if name in difflog.entity.kept and name in values.names:
            value = f.when(compensation, f.expr(values.exact(name, version))).otherwise(value)
        wide.append(value.alias(name))
    for name in values.names:
        if name not in columns:
            # A compensation has the value of exactly its version, or none.
            exact, before, after = map(f.expr, (values.exact(name, version), values.before(name), values.after(name)))
            wide.append(f.when(compensation, exact).when(cancels_old, before).otherwise(after).alias(name))
    return diff.select(*wide)


def _old_name(name: str) -> str:
    return f"{name} of the old state"


def _new_name(name: str) -> str:
    return f"{name} of the visits"
