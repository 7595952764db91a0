"""Continue an earlier run: check that the table is the same, and restore what was found in its finished blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trueup.db.snapshot import Position
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


def same_servers(before: Before, positions: Sequence[Position]) -> None:
    """Raise CheckFailed if a node is another server now, or went back: its finished blocks are of another history."""
    earlier = {position.node: position for position in before.positions[-1]} if before.positions else {}
    reasons = [
        f"{position.node} {reason}"
        for position in positions
        if (reason := position.server.why_other(earlier.get(position.node, position).server))
    ]
    if reasons:
        raise CheckFailed(reasons, cure="start a new run, without --resume")


def restore(before: Before, state: State) -> frozenset[int]:
    """Add the answers of the finished blocks to the state; return the numbers of these blocks."""
    for answer in before.answers():
        if isinstance(answer, Hashed):
            state.hashed(answer)
        else:
            state.add(answer)
    return before.done
