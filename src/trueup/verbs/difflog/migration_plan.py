"""The plan of a migration: the columns and versions of states and rows before and after it."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from trueup.verbs.difflog.basis import Basis
from trueup.verbs.difflog.model import DELETED, EXPIRES, FAST, SIGN, SINCE, SLOW, VERSION
from trueup.verbs.difflog.record import fast_fields
from trueup.verbs.difflog.steps.merge import col, cols


@dataclass(frozen=True)
class MigrationPlan:
    """The columns and versions before and after a migration."""

    old: Basis
    new: Basis
    schema: StructType

    @property
    def rewrites(self) -> bool:
        """Whether the state must be written again."""
        same = ("buckets", "ttl_days", "ttl_column")
        return (
            any(getattr(self.old, name) != getattr(self.new, name) for name in same)
            or self.new.multiplier < self.old.multiplier
            or self.before != self.after
            or bool(self._to_fast())
        )

    @property
    def before(self) -> list[str]:
        """The columns of the state before the migration."""
        reserved = {*self.old.key, self.old.fast_version, SLOW, DELETED, FAST, EXPIRES, SINCE}
        return [name for name in self.schema.names if name not in reserved]

    @property
    def after(self) -> list[str]:
        """The columns of the state after the migration."""
        both = dict.fromkeys([*self.before, *fast_fields(self.schema)])
        return [name for name in both if self.new.is_state(name)]

    def _to_fast(self) -> list[str]:
        """Return the columns of the state that become columns of the fast supplier only."""
        stored = fast_fields(self.schema)
        return [name for name in self.before if name in self.new.dropped and name not in stored]

    def counts(self, states: DataFrame) -> tuple[int, int]:
        """Return the number of states, and of the signed rows of the migration."""
        changed = f.count_if(self._is_changed() & ~_deleted())
        row = states.agg(f.count("*").alias("states"), changed.alias("changed")).collect()[0]
        return row["states"], 2 * row["changed"]

    def rows(self, states: DataFrame) -> DataFrame:
        """Return the signed rows: each changed row is cancelled, and written with the new settings."""
        changed = states.where(self._is_changed() & ~_deleted())
        return self._signed(changed, -1).unionByName(self._signed(changed, 1), allowMissingColumns=True)

    def states(self, states: DataFrame) -> DataFrame:
        """Return the states after the migration, without the day they expire."""
        values = [self._value(name).alias(name) for name in self.after]
        fast = [self._fast().alias(FAST)] if FAST in self.schema.names or self._to_fast() else []
        key = cols((*self.new.key, self.new.fast_version))
        since = [SINCE] if SINCE in self.schema.names else []
        return states.select(*key, self._slow().alias(SLOW), DELETED, *since, *values, *fast)

    def _signed(self, states: DataFrame, sign: int) -> DataFrame:
        basis, slow = (self.old, f.col(SLOW)) if sign < 0 else (self.new, self._slow())
        fast = col(basis.fast_version)
        names = self.before if sign < 0 else self.after
        stored = [*fast_fields(self.schema), *(self._to_fast() if sign > 0 else ())]
        values = [self._value(name).alias(name) for name in names]
        values += [self._fast_value(name).alias(name) for name in stored if name not in names]
        return states.select(
            *cols(basis.key),
            f.lit(sign).cast("tinyint").alias(SIGN),
            slow.cast("long").alias(SLOW),
            fast.alias(basis.fast_version),
            (f.lit(basis.multiplier).cast("long") * slow + fast).alias(VERSION),
            *values,
        )

    def _value(self, name: str) -> Column:
        """Return the value of a column of the state; a new one has the value of the fast supplier."""
        return col(name) if name in self.before else self._fast_value(name)

    def _fast_value(self, name: str) -> Column:
        """Return the value of a column of the fast supplier after the migration."""
        if name in fast_fields(self.schema):
            return f.col(FAST).getField(name)
        known = f.col(FAST).isNotNull() if FAST in self.schema.names else f.lit(True)
        return f.when(known, col(name)) if name in self._to_fast() else f.lit(None).cast("string")

    def _fast(self) -> Column:
        names = [*fast_fields(self.schema), *self._to_fast()]
        struct = f.struct(*[self._fast_value(name).alias(name) for name in names])
        return f.when(f.col(FAST).isNotNull(), struct) if FAST in self.schema.names else struct

    def _is_changed(self) -> Column:
        """Return whether the row of a state changes: its version, or the value of a column that leaves the state."""
        changed = f.lit(self.old.multiplier != self.new.multiplier)
        for name in (name for name in self.before if name not in self.after):
            # As text, because maps cannot be compared.
            was, becomes = (f.to_json(f.struct(value.alias("v"))) for value in (col(name), self._fast_value(name)))
            changed = changed | ~was.eqNullSafe(becomes)
        return changed

    def _slow(self) -> Column:
        """Return the slow version after the migration."""
        if self.old.multiplier == self.new.multiplier:
            return f.col(SLOW) + f.when(self._is_changed() & ~_deleted(), 1).otherwise(0)
        return f.expr(slow_sql(self.old.multiplier, self.new.multiplier))


def slow_sql(old: int, new: int) -> str:
    """Return Spark SQL for the slow version with a new multiplier, so that no version of a key is used twice.

    ClickHouse collapses rows with equal versions, even if their values differ. Versions of a key grow, so the new one
    must be larger than the last.
    """
    return SLOW if new > old else f"{SLOW} * {old}L div {new}L + 1"


def _deleted() -> Column:
    return f.coalesce(f.col(DELETED), f.lit(False))
