"""Which updates of a key are applied, and which are kept aside and why: the rules of docs/difflog.md as Spark SQL.

The result does not depend on how updates are divided into runs, if late ones are rejoined: an update is applied unless
a deletion at its version or a newer one removes it. So an update is late only if it is older than the state before the
run; two updates of one run could as well be in two runs, in the order of their versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from trueup.verbs.difflog.model import LATE_DELETION, NOT_BACK, OLDER, UNKNOWN, WAS_DELETED, StepOptions
from trueup.verbs.difflog.steps.merge import quoted


@dataclass(frozen=True)
class Judgement:
    """The names of the columns of a frame that `judge_updates` reads and adds.

    `every` has all updates of a step; `first`, `fast`, `gone` and `cleared` are the fast version before the run, and
    fast version, deletion and version of the last deletion before the step.
    """

    every: str
    first: str
    fast: str
    gone: str
    cleared: str
    # Added: the version of a deletion in these updates, of the last deletion after the step, the updates that are
    # applied, and the others with a reason.
    deletion: str
    now_cleared: str
    applied: str
    late: str


def judge_updates(frame: DataFrame, names: Judgement, options: StepOptions) -> DataFrame:
    """Return the frame with the columns that a judgement adds."""
    every, cleared = quoted(names.every), quoted(names.cleared)
    in_time = f"({quoted(names.first)} IS NULL OR e.F >= {quoted(names.first)})"
    known = _known(frame, names, options)
    now = frame.withColumn(names.deletion, f.lit(None).cast("long"))
    if options.deletes:
        newest = f"array_max(transform(filter({every}, e -> e.gone AND {in_time}), e -> e.F))"
        deletion = f"CASE WHEN {known} AND {newest} > coalesce({cleared}, -1) THEN {newest} END"
        now = frame.withColumn(names.deletion, f.expr(deletion)).withColumn(
            names.now_cleared, f.expr(f"greatest({cleared}, {quoted(names.deletion)})")
        )
    alive = f"e.F > coalesce({quoted(names.now_cleared)}, -1)"
    # Only a row of the entity brings it back.
    back = "true" if options.of_entity else f"NOT coalesce({quoted(names.gone)}, false)"
    taken = "true" if options.rejoin_late else in_time
    applied = f"filter({every}, e -> NOT e.gone AND {known} AND {back} AND {alive} AND {taken})"
    # A row of the entity that a deletion of the same run removes is not late: in two runs it is applied, then removed.
    removed = f"(e.F <= coalesce({cleared}, -1) OR NOT {in_time})" if options.of_entity else "true"
    reason = (
        f"CASE WHEN NOT {known} THEN '{UNKNOWN}'"
        f" WHEN e.gone THEN CASE WHEN {alive} AND NOT {in_time} THEN '{LATE_DELETION}' END"
        f" WHEN NOT {alive} THEN CASE WHEN {removed} THEN '{WAS_DELETED}' END"
        f" WHEN NOT {back} THEN '{NOT_BACK}' WHEN NOT {taken} THEN '{OLDER}' END"
    )
    # Filtered before they are copied: few are late.
    late = f"filter({every}, e -> ({reason}) IS NOT NULL)"
    reasons = f"transform({late}, e -> named_struct('F', e.F, 'reason', {reason}, 'd', e.d))"
    return now.select(
        "*",
        f.expr(applied).alias(names.applied),
        f.expr(reasons).alias(names.late),
    )


def _known(frame: DataFrame, names: Judgement, options: StepOptions) -> str:
    """Return Spark SQL for: the updates have a state, or may create one.

    If states expire, an update without an age may belong to an expired state, whose versions are not known any more.
    """
    has_state = f"{quoted(names.fast)} IS NOT NULL"
    if not options.age:
        return "true"
    if not options.of_entity:
        return has_state
    if options.age in options.key:
        return "true"
    updates: Any = frame.schema[names.every].dataType
    if options.age not in updates.elementType["d"].dataType.names:
        return has_state
    return f"({has_state} OR exists({quoted(names.every)}, x -> x.d.{quoted(options.age)} IS NOT NULL))"
