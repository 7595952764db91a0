"""The log made wide again: what the fast supplier knows of a version is glued to every signed row of that version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trueup.difflog.merge import quoted
from trueup.difflog.model import SLOW, Difflog

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The column of the state table that holds what the fast supplier said at the state's fast version.
FAST = "Fast"


def fast_columns(difflog: Difflog, frame: DataFrame) -> list[str]:
    """The columns of the fast supplier that a frame has: those that were dropped and those that are merged."""
    wanted = (*difflog.entity.dropped, *difflog.entity.kept)
    return [name for name in wanted if name in frame.columns]


def fast_rows(difflog: Difflog, frame: DataFrame) -> DataFrame:
    """Key, fast version, and what the fast supplier said at that version, as a struct."""
    from pyspark.sql import functions as f

    entity = difflog.entity
    columns = fast_columns(difflog, frame)
    said = (
        f.struct(*[f.col(quoted(name)) for name in columns]) if columns else f.lit(None).cast("struct<nothing:boolean>")
    )
    return frame.select(
        *[f.col(quoted(name)) for name in entity.key],
        f.col(quoted(entity.fast_version)).cast("long").alias(entity.fast_version),
        said.alias(FAST),
    )


def known_versions(difflog: Difflog, sources: Sequence[DataFrame]) -> DataFrame:
    """By key: a map from fast version to what was said at it, and what was said last."""
    from pyspark.sql import functions as f

    entity = difflog.entity
    every = sources[0]
    for more in sources[1:]:
        every = every.unionByName(more)
    fast = f.col(quoted(entity.fast_version))
    # A version that several chunks tell is told the same; any of them will do.
    said = (
        every.where(fast.isNotNull() & f.col(FAST).isNotNull())
        .groupBy(*[f.col(quoted(name)) for name in entity.key], fast.alias("F"))
        .agg(f.first(FAST).alias(FAST))
    )
    return said.groupBy(*[f.col(quoted(name)) for name in entity.key]).agg(
        f.map_from_entries(f.collect_list(f.struct("F", FAST))).alias("versions"), f.max_by(FAST, "F").alias("newest")
    )


def widen(diff: DataFrame, versions: DataFrame, difflog: Difflog, fast: Sequence[str]) -> DataFrame:
    """The log with the dropped columns glued on; compensations of fast rows carry what the fast supplier said."""
    from pyspark.sql import functions as f

    entity = difflog.entity
    joined = diff.join(versions, list(entity.key), "left")
    exact = f.element_at("versions", f.col(quoted(entity.fast_version)))
    compensation = f.col(SLOW) == 0
    wide: list[Column] = []
    for name in diff.columns:
        mine = f.col(quoted(name))
        if name in entity.kept and name in fast:
            mine = f.when(compensation, exact.getField(name)).otherwise(mine)
        wide.append(mine.alias(name))
    for name in fast:
        if name not in diff.columns:
            # A new state always carries what is known; a compensation only what was said at that very version.
            said = f.when(compensation, exact.getField(name)).otherwise(
                f.coalesce(exact, f.col("newest")).getField(name)
            )
            wide.append(said.alias(name))
    return joined.select(*wide)
