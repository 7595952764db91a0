"""The log made wide again: what the fast supplier knows of a version is glued to every signed row of that version.

It is known of two versions of a key at most that a run can speak of: the one of its state before the run, and the
newest one that the run's visits tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trueup.errors import CheckFailed
from trueup.verbs.difflog.merge import RANK, quoted
from trueup.verbs.difflog.model import FAST, SLOW, Difflog

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

_BEFORE, _TOLD = "version said before", "version told"


@dataclass(frozen=True)
class Glue:
    """The columns of the fast supplier: which of them the old states have, and which the new visits."""

    before: tuple[str, ...]
    told: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, each once."""
        return tuple(dict.fromkeys((*self.before, *self.told)))

    def columns(self) -> list[Column]:
        """The columns of the frame that hold what the fast supplier said; versions first."""
        from pyspark.sql import functions as f

        names = [_BEFORE, _TOLD, *map(_before, self.before), *map(_told, self.told)]
        return [f.col(quoted(name)) for name in names]

    def exact(self, name: str, version: str, otherwise: str = "NULL") -> str:
        """Spark SQL: what was said of a column at that very version."""
        return (
            f"CASE WHEN {version} = {quoted(_TOLD)} THEN {self._of(name, True)}"
            f" WHEN {version} = {quoted(_BEFORE)} THEN {self._of(name, False)} ELSE {otherwise} END"
        )

    def best(self, name: str, version: str) -> str:
        """What was said of a column at that version, else what was said last."""
        told_last = f"{quoted(_TOLD)} >= coalesce({quoted(_BEFORE)}, {quoted(_TOLD)})"
        newest = f"CASE WHEN {told_last} THEN {self._of(name, True)} ELSE {self._of(name, False)} END"
        return self.exact(name, version, newest)

    def _of(self, name: str, told: bool) -> str:
        if name not in (self.told if told else self.before):
            return "NULL"
        return quoted(_told(name) if told else _before(name))


def glue(difflog: Difflog, state: StructType, visits: DataFrame | None) -> Glue:
    """Which columns there are to be glued; where both have one, the types must agree."""
    from pyspark.sql.types import StructType

    kind = state[FAST].dataType if FAST in state.names else StructType([])
    assert isinstance(kind, StructType)
    before = {each.name: each.dataType for each in kind.fields if each.name != "nothing"}
    wanted = (*difflog.entity.dropped, *difflog.entity.kept)
    told = {name: visits.schema[name].dataType for name in wanted if visits is not None and name in visits.columns}
    wrong = [
        f"column {name} has the type {before[name].simpleString()} in the state and {told[name].simpleString()} in the"
        " chunks"
        for name in before
        if name in told and before[name] != told[name]
    ]
    if wrong:
        raise CheckFailed(wrong, cure="cast it in the chunks, so that both agree")
    return Glue(tuple(before), tuple(told))


def said_before(difflog: Difflog, found: Glue, state: StructType) -> list[Column]:
    """Columns of the old states: the version of what the fast supplier said, and what it said."""
    from pyspark.sql import functions as f

    if FAST not in state.names:
        return [f.lit(None).cast("long").alias(_BEFORE)]
    version = f.when(f.col(FAST).isNotNull(), f.col(quoted(difflog.entity.fast_version)).cast("long"))
    return [version.alias(_BEFORE), *[f.col(FAST).getField(name).alias(_before(name)) for name in found.before]]


def newest_told(found: Glue) -> list[Column]:
    """An aggregate over the visits of a key: what the newest of them says."""
    from pyspark.sql import functions as f

    if not found.told:
        return []
    return [f.max_by(f.struct(*[f.col(quoted(name)) for name in found.told]), f.col(RANK)).alias(_TOLD)]


def unpacked(frame: DataFrame, found: Glue, version: str) -> DataFrame:
    """The frame with what the newest visits say as plain columns; `version` is the column with their fast version."""
    from pyspark.sql import functions as f

    if not found.told:
        return frame.withColumn(_TOLD, f.lit(None).cast("long"))
    return frame.select(
        *[f.col(quoted(name)) for name in frame.columns if name != _TOLD],
        f.col(quoted(version)).alias(_TOLD),
        *[f.col(quoted(_TOLD)).getField(name).alias(_told(name)) for name in found.told],
    )


def fast_state(found: Glue, version: str) -> Column | None:
    """For the state table: what the fast supplier said at this version of the state, else last."""
    from pyspark.sql import functions as f

    if not found.names:
        return None
    known = f.expr(f"{quoted(_TOLD)} IS NOT NULL OR {quoted(_BEFORE)} IS NOT NULL")
    said = f.struct(*[f.expr(found.best(name, quoted(version))).alias(name) for name in found.names])
    return f.when(known, said).alias(FAST)


def widen(diff: DataFrame, columns: Sequence[str], difflog: Difflog, found: Glue) -> DataFrame:
    """The log (its `columns`) with the dropped ones glued on; compensations carry what the fast supplier said."""
    from pyspark.sql import functions as f

    version = quoted(difflog.entity.fast_version)
    compensation = f.col(SLOW) == 0
    wide: list[Column] = []
    for name in columns:
        mine = f.col(quoted(name))
        if name in difflog.entity.kept and name in found.names:
            mine = f.when(compensation, f.expr(found.exact(name, version))).otherwise(mine)
        wide.append(mine.alias(name))
    for name in found.names:
        if name not in columns:
            # A new state always carries what is known; a compensation only what was said at that very version.
            exact, best = f.expr(found.exact(name, version)), f.expr(found.best(name, version))
            wide.append(f.when(compensation, exact).otherwise(best).alias(name))
    return diff.select(*wide)


def _before(name: str) -> str:
    return f"{name} said before"


def _told(name: str) -> str:
    return f"{name} told"
