"""Taking up a run again: is it still the same table, and what was found in the blocks that are finished?"""

from __future__ import annotations

from dataclasses import replace

from trueup.engine.progress import Progress
from trueup.errors import CheckFailed
from trueup.rows.spec import TableSpec
from trueup.task.compare.model import Hashed
from trueup.task.compare.state import State
from trueup.verbs.diff.journal import Before


def same_table(before: Before, spec: TableSpec, progress: Progress) -> TableSpec:
    """The table as it is compared, with the hash of the earlier try; refused if anything else is not as it was."""
    again = replace(spec, seed=before.plan.spec.seed)
    if again != before.plan.spec:
        raise CheckFailed(
            ["the table, its key or its columns are not as they were when the run was begun"],
            cure="start anew, without --resume",
            table=f"{spec.schema}.{spec.table}",
        )
    progress.say(f"{len(before.done)} of {len(before.plan.ranges.blocks)} blocks were finished before")
    return again


def take_up(before: Before, state: State) -> frozenset[int]:
    """Count what was found in the finished blocks; returns their numbers."""
    for answer in before.answers():
        if isinstance(answer, Hashed):
            state.hashed(answer)
        else:
            state.add(answer)
    return before.done
