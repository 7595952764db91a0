"""A check's second look: blocks whose digests differed are hashed again, as they are now."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from trueup.db.snapshot import Control
from trueup.engine.progress import Progress
from trueup.engine.work import Engine
from trueup.rows.keys import Block
from trueup.task.compare.recheck import wait_since
from trueup.task.compare.state import State
from trueup.task.job import Job
from trueup.verbs.diff.collect import compare_blocks

# So many are looked at together. Where drift is everywhere, the first of them are enough to know.
_PORTION = 64


def rehash(
    engine: Engine,
    job: Job,
    state: State,
    controls: Sequence[Control],
    *,
    rounds: int,
    wait: float,
    seen: float,
    progress: Progress,
) -> None:
    """Hash the blocks that differ again, or the units of them that do, some rounds; what agrees now was in flight.

    One that stays is the answer: those behind its portion are not looked at again, and count as they were seen first. A
    keyless table has no blocks to look at apart, so its first answer stands.
    """
    if not rounds or not state.mismatched:
        return
    rest = state.mismatched
    stay: list[tuple[int, Block]] = []
    while rest and not stay and not state.stopped:
        stay, rest = rest[:_PORTION], rest[_PORTION:]
        for _ in range(rounds):
            if not stay or state.stopped:
                break
            wait_since(seen, wait, state.sleep)
            stay = _look(engine, replace(job, snapshots={}), stay, state, controls, progress)
            seen = time.monotonic()
        # The next portion has waited since the first look of all.
        seen -= wait
    state.mismatched = stay + rest
    state.mismatched_blocks = len({block for block, _ in state.mismatched})
    state.seen_once = len(rest)


def _look(
    engine: Engine,
    job: Job,
    some: list[tuple[int, Block]],
    state: State,
    controls: Sequence[Control],
    progress: Progress,
) -> list[tuple[int, Block]]:
    """Those of them that differ still; all of them if one could not be looked at."""
    again = State(state.nodes, state.max_rows, state.suspects, steering=state.steering)
    # Numbers below zero: these looks are no part of the plan that can be taken up again.
    blocks = {-2 - number: block for number, (_, block) in enumerate(some)}
    compare_blocks(engine, job, blocks, again, controls, progress)
    state.failures += again.failures
    state.left_out.update(again.left_out)
    state.stopped = again.stopped
    if again.failures or again.stopped:
        return some
    return [some[-2 - number] for number, _ in again.mismatched]
