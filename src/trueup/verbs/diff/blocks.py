"""Compare a table by blocks of its key: hash them, split and compare those that differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from trueup.engine.progress import Progress
from trueup.engine.work import Tasks
from trueup.rows.keys import Block, KeyValues
from trueup.task.compare.model import Hashed
from trueup.task.compare.state import Comparison
from trueup.verbs.diff.answers import ANALYSIS, answers, end, keep, spend, start
from trueup.verbs.diff.hash import FIRST_STEP, work
from trueup.verbs.diff.work import Ended, HashBlock

# Above the first share of differing units, one pass over the rows is faster than two; it is used until the share
# falls below the second one.
_DENSE, _STILL_DENSE = 0.3, 0.1
_ENOUGH_UNITS = 15
# The weight of earlier blocks in that share.
_DECAY = 0.6


def compare_blocks(
    run: Comparison,
    blocks: Mapping[int, Block],
    inside: Callable[[int], tuple[KeyValues, ...]] = lambda number: (),
) -> None:
    """Compare blocks, by their numbers; `inside` returns the keys that cut a block into units."""
    job, state, progress = run.job, run.state, run.progress
    progress.stage("hashing", len(blocks))
    analysis = _Analysis(progress)
    drift = _Drift()
    waiting = iter(blocks.items())
    step = min(FIRST_STEP, job.max_rows_per_query or FIRST_STEP) if job.query_seconds else 0

    def hash_tasks() -> Iterator[HashBlock]:
        for number, block in waiting:
            nodes = state.open_nodes()
            if not nodes:
                state.left_out.update(dict.fromkeys(state.pairs, 1 + sum(1 for _ in waiting)))
                return
            start(state, number)
            dense = drift.is_dense and not step and not job.digests_only
            yield HashBlock(block, nodes, step=step, origin=number, inner=inside(number), dense=dense)

    tasks: Tasks[Any] = Tasks(hash_tasks(), state.gate, expected=len(blocks))
    for answer in answers(run, partial(work, job), tasks):
        if isinstance(answer, Hashed):
            state.hashed(answer)
            state.ran_on[tasks.ran_on] += not answer.is_part
            drift.add(answer)
            step = answer.step
            rows = max(answer.counts.values())
            progress.advance(not answer.is_part, rows=rows)
            # Rows that differ are read twice more: by hash, and as whole rows.
            spend(state, rows * (3 if answer.mismatched and not job.digests_only else 1))
            if answer.mismatched and not job.digests_only:
                analysis.begin(answer.origin)
            if state.journal:
                # A resumed run records no certificate.
                state.journal.add(replace(answer, digests=()))
        elif isinstance(answer, Ended):
            if end(state, answer.origin):
                analysis.end(answer.origin)
        else:
            keep(answer, tasks, state)


class _Drift:
    """The share of differing units in the last blocks."""

    def __init__(self) -> None:
        self._units = 0.0
        self._differing = 0.0
        self.is_dense = False

    def add(self, answer: Hashed) -> None:
        self._units = self._units * _DECAY + answer.units
        self._differing = self._differing * _DECAY + answer.differing
        if self._units >= _ENOUGH_UNITS:
            share = self._differing / self._units
            self.is_dense = share > (_STILL_DENSE if self.is_dense else _DENSE)


class _Analysis:
    """The stage of the blocks that differ, which is shown beside the stage of hashing."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._open: set[int] = set()
        self._shown = False

    def begin(self, origin: int) -> None:
        if origin not in self._open:
            if not self._shown:
                self._progress.stage(ANALYSIS, 0)
                self._shown = True
            self._progress.advance(0, more=1, stage=ANALYSIS)
            self._open.add(origin)

    def end(self, origin: int) -> None:
        if origin in self._open:
            self._open.remove(origin)
            self._progress.advance(stage=ANALYSIS)
