"""The columns of the fast supplier in the frame: `steps.rows.widened` adds them to the log."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from trueup.errors import CheckFailed
from trueup.verbs.difflog.model import FAST, DiffLogConfig
from trueup.verbs.difflog.steps.columns import Glue
from trueup.verbs.difflog.steps.merge import col, cols
from trueup.verbs.difflog.steps.step import version_of


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
    return Glue(tuple(old), tuple(new), tuple(difflog.entity.kept))


def old_values(difflog: DiffLogConfig, values: Glue, state: StructType) -> list[Column]:
    """Return the values of the fast supplier in the old states, and their version, as columns."""
    if FAST not in state.names:
        return [f.lit(None).cast("long").alias(Glue.old_version)]
    fast = f.coalesce(version_of(state.names, FAST), col(difflog.entity.fast_version).cast("long"))
    version = f.when(f.col(FAST).isNotNull(), fast)
    return [
        version.alias(Glue.old_version),
        *[f.col(FAST).getField(name).alias(Glue.old_name(name)) for name in values.old],
    ]


def unpacked(frame: DataFrame, values: Glue, newest: str) -> DataFrame:
    """Return the frame with the values of the newest visit as separate columns; `newest` is its column, if any."""
    kept = cols(name for name in frame.columns if name != newest)
    if not newest:
        return frame.withColumn(Glue.new_version, f.lit(None).cast("long"))
    visit = col(newest)
    return frame.select(
        *kept,
        visit.getField("F").alias(Glue.new_version),
        *[visit.getField("d").getField(name).alias(Glue.new_name(name)) for name in values.new],
    )
