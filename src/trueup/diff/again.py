"""A check's second look: blocks whose digests differed are hashed again, as they are now."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from trueup.db.snapshot import Control
from trueup.diff.collect import Collected, compare_blocks
from trueup.diff.recheck import wait_since
from trueup.diff.work import Job
from trueup.engine.progress import Progress
from trueup.engine.work import Engine


def rehash(
    engine: Engine,
    job: Job,
    state: Collected,
    controls: Sequence[Control],
    *,
    rounds: int,
    wait: float,
    seen: float,
    progress: Progress,
) -> None:
    """Hash the blocks that differ again, or the units of them that do, some rounds; what agrees now was in flight.

    A keyless table has no blocks to look at apart, so its first answer stands.
    """
    now = replace(job, snapshots={})
    for _ in range(rounds):
        if not state.mismatched or state.stopped:
            return
        wait_since(seen, wait, state.sleep)
        again = Collected(state.nodes, state.max_rows, state.suspects, steering=state.steering)
        # Numbers below zero: these looks are no part of the plan that can be taken up again.
        blocks = {-2 - number: block for number, (_, block) in enumerate(state.mismatched)}
        compare_blocks(engine, now, blocks, again, controls, progress)
        state.failures += again.failures
        state.left_out.update(again.left_out)
        state.stopped = again.stopped
        seen = time.monotonic()
        if not again.failures:
            still = [-2 - number for number, _ in again.mismatched]
            state.mismatched = [state.mismatched[number] for number in still]
            state.mismatched_blocks = len({block for block, _ in state.mismatched})
