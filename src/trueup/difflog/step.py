"""One step of the diff: previous states and updates in, the signed log and the patched states out. DataFrames only."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trueup.difflog.blocks import blocks_sql
from trueup.difflog.merge import merge_updates, plus, quoted
from trueup.difflog.model import SIGN, SLOW, VERSION, StepOptions
from trueup.errors import CheckFailed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DELETED = "IsDeleted"


class Step(NamedTuple):
    """What a step brings forth; the first three are its result, `late` is what it kept aside."""

    diff: DataFrame
    patched_new_only: DataFrame
    patched: DataFrame
    late: DataFrame
    joined: DataFrame

    def forget(self) -> None:
        """Let go of what was kept for several outputs."""
        self.joined.unpersist()


def step(previous: DataFrame, updates: DataFrame, options: StepOptions) -> tuple[DataFrame, DataFrame, DataFrame]:
    """The diff, the new states only, and all states after the step.

    `previous` has the key, the fast version, `SlowVersion`, and the state's columns; `updates` has the key, the fast
    version and any columns, also new ones. Updates older than the state make no diff: `whole_step` tells them.
    """
    return whole_step(previous, updates, options)[:3]


def whole_step(previous: DataFrame, updates: DataFrame, options: StepOptions, *, keep: bool = False) -> Step:
    """The step with the updates that were too late; `keep` joins once for all outputs that are going to be written."""
    joined = _joined(previous, updates, options)
    if keep:
        joined = joined.persist()
    columns = _state_columns(previous, updates, options)
    return Step(
        diff=_diff(joined, columns, options),
        patched_new_only=_new_only(joined, columns, options),
        patched=_patched(joined, columns, options),
        late=_late(joined, options),
        joined=joined,
    )


def _state_columns(previous: DataFrame, updates: DataFrame, options: StepOptions) -> list[str]:
    """The state's columns, and those that the updates bring for the first time."""
    ours = {*options.key, options.fast_version, SLOW, DELETED, options.deleted}
    times = {rule.by for rule in options.rules.values() if rule.name == "last"}
    if options.order_by not in options.rules and options.order_by not in times:
        # It only says which of two updates is the newer.
        ours.add(options.order_by)
    return [name for name in dict.fromkeys((*previous.columns, *updates.columns)) if name not in ours]


def _joined(previous: DataFrame, updates: DataFrame, options: StepOptions) -> DataFrame:
    """Every key once, with `old` and `new` as structs of the same columns; one shuffle a side."""
    from pyspark.sql import functions as f

    columns = _state_columns(previous, updates, options)
    said = [name for name in columns if name in updates.columns]
    merged = merge_updates(updates, said, options)
    types = {name: _kind(previous, updates, name) for name in columns}
    old = previous.select(
        *_key(options),
        f.col(quoted(options.fast_version)).cast("long").alias("old_F"),
        f.col(SLOW).cast("long").alias("old_S"),
        (f.coalesce(f.col(DELETED), f.lit(False)) if DELETED in previous.columns else f.lit(False)).alias(
            "was_deleted"
        ),
        f.struct(*_all(previous, columns, types)).alias("old"),
    )
    new = merged.select(
        *_key(options),
        f.col(quoted(options.fast_version)).cast("long").alias("given_F"),
        _mark(merged, options).alias("is_deleted"),
        f.struct(*_all(merged, columns, types)).alias("new"),
    )
    both = old.join(new, list(options.key), "full_outer")
    late = f.coalesce(f.col("old_F") > f.col("given_F"), f.lit(False))
    # Side rows of a deleted entity are kept aside too: nothing stands that they could change.
    gone = f.coalesce(f.col("was_deleted") & (f.col("old_F") == f.col("given_F")) & ~f.col("is_deleted"), f.lit(False))
    rejoined = late & ~f.col("was_deleted") & ~f.col("is_deleted") if options.rejoin_late else f.lit(False)
    return both.select(
        *_key(options),
        "old_F",
        "old_S",
        "old",
        "new",
        f.coalesce("was_deleted", f.lit(False)).alias("old_deleted"),
        f.coalesce("is_deleted", f.lit(False)).alias("new_deleted"),
        f.col("given_F"),
        f.when(rejoined, f.col("old_F")).otherwise(f.col("given_F")).alias("new_F"),
        f.when(rejoined, f.lit(None)).when(gone, f.lit("deleted")).when(late, f.lit("older")).alias("aside"),
    )


def _key(options: StepOptions) -> list[Column]:
    from pyspark.sql import functions as f

    return [f.col(quoted(name)) for name in options.key]


def _kind(previous: DataFrame, updates: DataFrame, name: str) -> str:
    """The type of a column: both sides must agree, or one of them has it alone."""
    kinds = {frame.schema[name].dataType.simpleString() for frame in (previous, updates) if name in frame.columns}
    if len(kinds) > 1:
        raise CheckFailed(
            [f"column {name} has the type {' in the state and '.join(sorted(kinds))} in the updates"],
            cure="cast it in the chunks, so that both agree",
        )
    return kinds.pop()


def _all(frame: DataFrame, columns: list[str], types: dict[str, str]) -> list[Column]:
    """All columns of the state, NULL where a side does not have one; a struct is never empty."""
    from pyspark.sql import functions as f

    found = [
        (f.col(quoted(name)) if name in frame.columns else f.lit(None).cast(types[name])).alias(name)
        for name in columns
    ]
    return found or [f.lit(None).cast("boolean").alias("nothing")]


def _mark(merged: DataFrame, options: StepOptions) -> Column:
    from pyspark.sql import functions as f

    if not options.deleted or options.deleted not in merged.columns:
        return f.lit(False)
    return f.coalesce(f.col(quoted(options.deleted)).cast("boolean"), f.lit(False))


def _touched(joined: DataFrame) -> DataFrame:
    return joined.where("new_F IS NOT NULL AND aside IS NULL")


def _merged(joined: DataFrame, columns: list[str], options: StepOptions) -> Column:
    """`(new ?? {}) + (old ?? {})`; the tombstone of an entity has no state."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    schema = joined.schema["old"].dataType
    assert isinstance(schema, StructType)
    merged = plus(columns, schema, options) or [f.lit(None).cast("boolean").alias("nothing")]
    return f.struct(*merged)


def _diff(joined: DataFrame, columns: list[str], options: StepOptions) -> DataFrame:
    from pyspark.sql import functions as f

    parts = _touched(joined).select(
        *_key(options),
        f.explode(f.expr(blocks_sql(options.multiplier))).alias("part"),
        "old",
        _merged(joined, columns, options).alias("merged"),
    )
    state = [
        f.when(f.col("part.state") == "old", f.col("old").getField(name))
        .when(f.col("part.state") == "merged", f.col("merged").getField(name))
        .alias(name)
        for name in columns
    ]
    return parts.select(
        *_key(options),
        f.col("part.Sign").alias(SIGN),
        f.col("part.S").alias(SLOW),
        f.col("part.F").alias(options.fast_version),
        f.col("part.Version").alias(VERSION),
        f.col("part.Block").alias("Block"),
        *state,
    )


def _new_only(joined: DataFrame, columns: list[str], options: StepOptions) -> DataFrame:
    from pyspark.sql import functions as f

    return _touched(joined).select(*_key(options), *_new_state(joined, columns, options, f.lit(True)))


def _patched(joined: DataFrame, columns: list[str], options: StepOptions) -> DataFrame:
    from pyspark.sql import functions as f

    is_new = f.expr("new_F IS NOT NULL AND aside IS NULL")
    # A late update of an unknown key cannot be: what is late has an old state.
    return joined.select(*_key(options), *_new_state(joined, columns, options, is_new))


def _new_state(joined: DataFrame, columns: list[str], options: StepOptions, is_new: Column) -> list[Column]:
    """The state after the step: patched where `is_new`, else as it was."""
    from pyspark.sql import functions as f

    merged = _merged(joined, columns, options)
    gone = is_new & f.col("new_deleted")
    state = [
        f.when(gone, f.lit(None)).when(is_new, merged.getField(name)).otherwise(f.col("old").getField(name)).alias(name)
        for name in columns
    ]
    return [
        f.when(is_new, f.col("new_F")).otherwise(f.col("old_F")).alias(options.fast_version),
        f.when(is_new, f.lit(1) + f.coalesce(f.col("old_S"), f.lit(0)))
        .otherwise(f.col("old_S"))
        .cast("long")
        .alias(SLOW),
        f.when(is_new, f.col("new_deleted")).otherwise(f.col("old_deleted")).alias(DELETED),
        *state,
    ]


def _late(joined: DataFrame, options: StepOptions) -> DataFrame:
    from pyspark.sql import functions as f

    return joined.where("aside IS NOT NULL").select(
        *_key(options),
        f.col("given_F").alias(options.fast_version),
        f.col("old_F").alias("newest_version"),
        f.col("aside").alias("reason"),
        "new.*",
    )
