"""Continue an earlier run: check that the table is the same, and restore what was found in its finished blocks."""

from __future__ import annotations

from dataclasses import replace

from trueup.engine.progress import Progress
from trueup.errors import CheckFailed
from trueup.rows.spec import TableSpec
from trueup.task.compare.model import Hashed
from trueup.task.compare.state import State
from trueup.verbs.diff.journal import Before


def same_table(before: Before, spec: TableSpec, progress: Progress) -> TableSpec:
    """Return the table with the hash seed of the earlier run; raise if its key or columns have changed since."""
    same = replace(spec, seed=before.plan.spec.seed)
    if same != before.plan.spec:
        raise CheckFailed(
            ["the table, its key or its columns have changed since the run was started"],
            cure="start a new run, without --resume",
            table=f"{spec.schema}.{spec.table}",
        )
    progress.say(f"{len(before.done)} of {len(before.plan.ranges.blocks)} blocks are already finished")
    return same


def restore(before: Before, state: State) -> frozenset[int]:
    """Add the answers of the finished blocks to the state; return the numbers of these blocks."""
    for answer in before.answers():
        if isinstance(answer, Hashed):
            state.hashed(answer)
        else:
            state.add(answer)
    return before.done
