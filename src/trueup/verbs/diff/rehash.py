"""The re-check of `trueup check`: hash the blocks that differ again, outside of the snapshot."""

from __future__ import annotations

import time
from dataclasses import replace

from trueup.rows.keys import Block
from trueup.rows.spec import new_seed
from trueup.task.compare.recheck import wait_since
from trueup.task.compare.state import Comparison, State
from trueup.verbs.diff.blocks import compare_blocks

# Ranges that are hashed again at once. If many differ, the first batch is enough to know.
_BATCH = 64


def rehash(run: Comparison, seen: float) -> None:
    """Hash the blocks or units that differ again, in the configured number of rounds; those that agree were in flight.

    After a batch in which some still differ, the others are not hashed again and count as differing. A keyless table
    has no blocks, so its first result is kept.
    """
    state, settings = run.state, run.request.settings
    if not settings.recheck or not state.mismatched:
        return
    rest = state.mismatched
    differing: list[tuple[int, Block]] = []
    while rest and not differing and not state.stopped:
        differing, rest = rest[:_BATCH], rest[_BATCH:]
        for _ in range(settings.recheck):
            if not differing or state.stopped:
                break
            wait_since(seen, settings.recheck_wait, state.sleep)
            differing = _still_differing(run, differing)
            seen = time.monotonic()
        # The next batch was hashed first of all: it need not wait again.
        seen -= settings.recheck_wait
    state.mismatched = differing + rest
    state.mismatched_blocks = len({block for block, _ in state.mismatched})
    state.seen_once = len(rest)


def _still_differing(run: Comparison, batch: list[tuple[int, Block]]) -> list[tuple[int, Block]]:
    """Return those that still differ, or all of them if one could not be hashed."""
    state = run.state
    # Rows may have been written since the seed of the run could be known.
    job = replace(run.job, snapshots={}, spec=replace(run.job.spec, seed=new_seed()))
    again = State(state.nodes, state.max_rows, state.suspects, steering=state.steering)
    # Negative numbers: these blocks are not part of the plan that a resumed run continues.
    blocks = {-2 - number: block for number, (_, block) in enumerate(batch)}
    compare_blocks(replace(run, job=job, state=again), blocks)
    state.failures += again.failures
    state.left_out.update(again.left_out)
    state.stopped = again.stopped
    if again.failures or again.stopped:
        return batch
    return [batch[-2 - number] for number, _ in again.mismatched]
