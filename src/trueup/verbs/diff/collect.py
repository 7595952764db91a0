"""What the tasks answer, gathered: rows and blocks counted, differences spooled, limits kept, failures remembered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from trueup.db.snapshot import Control
from trueup.engine.progress import Progress
from trueup.engine.work import Engine, Failure, More, Room, Tasks
from trueup.errors import NodeError, QueryError, TrueupError
from trueup.rows.align import pack
from trueup.rows.digest import EMPTY, Digest
from trueup.rows.keys import Block, KeyValues
from trueup.task.compare.copies import compare_hashes
from trueup.task.compare.model import NOWHERE, Found, Hashed, Ranges
from trueup.task.compare.state import State
from trueup.task.job import Job
from trueup.verbs.diff import keyless, physical
from trueup.verbs.diff.hash import FIRST_STEP, work
from trueup.verbs.diff.keyless import CompareBuckets, PartScanned, ScanPart
from trueup.verbs.diff.work import Ended, HashBlock

ANALYSIS = "mismatch analysis"
# Above this share of differing units a single pass over the rows is quicker than two; it stays so down to the second.
_DENSE, _STILL_DENSE = 0.3, 0.1
_ENOUGH_UNITS = 15
_FORGETTING = 0.6
# Conditions of the whole table, not of one block: going on would only meet them again.
_FOR_ALL_BLOCKS = ("42P01", "42703", "42501", "55P03", "3F000", "53100", "53200")


def compare_blocks(
    engine: Engine,
    job: Job,
    blocks: Mapping[int, Block],
    state: State,
    controls: Sequence[Control],
    progress: Progress,
    inside: Callable[[int], tuple[KeyValues, ...]] = lambda number: (),
) -> None:
    """Blocks of a table with a key, by their numbers: hash, split, compare. `inside` tells a block's units."""
    progress.stage("hashing", len(blocks))
    analysis = _Analysis(progress)
    drift = _Drift()
    waiting = iter(blocks.items())
    step = min(FIRST_STEP, job.most_rows_a_query or FIRST_STEP) if job.query_seconds else 0

    def given() -> Iterator[HashBlock]:
        for number, block in waiting:
            nodes = state.open_nodes()
            if not nodes:
                state.left_out.update(dict.fromkeys(state.pairs, 1 + sum(1 for _ in waiting)))
                return
            _given(state, number)
            dense = drift.is_dense and not step and not job.digests_only
            yield HashBlock(block, nodes, step=step, origin=number, inner=inside(number), dense=dense)

    tasks: Tasks[Any] = Tasks(given(), state.gate)
    for answer in _answers(engine, partial(work, job), tasks, state, controls):
        if isinstance(answer, Hashed):
            state.hashed(answer)
            drift.saw(answer)
            step = answer.step
            rows = max(answer.counts.values())
            progress.advance(not answer.is_part, rows=rows)
            # What differs is read again, by hash and then row by row.
            _spend(state, rows * (3 if answer.mismatched and not job.digests_only else 1))
            if answer.mismatched and not job.digests_only:
                analysis.begin(answer.origin)
            if state.journal:
                state.journal.add(answer)
        elif isinstance(answer, Ended):
            if _ended(state, answer.origin):
                analysis.end(answer.origin)
        else:
            _keep(answer, tasks, state)


class _Drift:
    """How large a share of the units differs, over the last blocks: many, and reading them twice is a waste."""

    def __init__(self) -> None:
        self._units = 0.0
        self._differing = 0.0
        self.is_dense = False

    def saw(self, answer: Hashed) -> None:
        self._units = self._units * _FORGETTING + answer.units
        self._differing = self._differing * _FORGETTING + answer.differing
        if self._units >= _ENOUGH_UNITS:
            share = self._differing / self._units
            self.is_dense = share > (_STILL_DENSE if self.is_dense else _DENSE)


class _Analysis:
    """The second stage, beside the first: the blocks that differ, and how many of them are looked through."""

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


def _spend(state: State, rows: int) -> None:
    if state.steering:
        state.steering.spend(rows)


def _given(state: State, origin: int, tasks: int = 1) -> None:
    state.under_way[origin] += tasks


def _ended(state: State, origin: int) -> bool:
    """A task came to its end; True if it was the last one of its block."""
    state.under_way[origin] -= 1
    if state.under_way[origin]:
        return False
    del state.under_way[origin]
    if state.journal and origin not in state.broken:
        state.journal.done(origin)
    return True


def compare_pages(
    engine: Engine, job: Job, ranges: Ranges, state: State, controls: Sequence[Control], progress: Progress
) -> None:
    """A table whose key says nothing of where rows lie: one scan of each node, then the units that differ."""
    cuts = physical.all_cuts(ranges)
    scans = physical.page_tasks(controls, job.spec, cuts)
    progress.stage("hashing", len(scans))
    sums: dict[str, dict[int, Digest]] = {node: {} for node in state.nodes}
    for answer in _answers(engine, partial(physical.scan_pages, job), Tasks(scans, state.gate), state, controls):
        assert isinstance(answer, physical.PagesScanned)
        _add_up(sums[answer.node], answer.units)
        progress.advance(rows=sum(digest.count for digest in answer.units.values()))
    if state.failures:
        return
    state.blocks = len(cuts) + 1
    _count_rows(state, sums)
    units = physical.differing_units(sums, cuts)
    state.mismatched_blocks = len(units)
    state.mismatched = [(physical.origin_of(number), block) for number, (block, _) in enumerate(units)]
    state.unexplained.update(physical.origin_of(number) for number in range(len(units)))
    if job.digests_only or not units:
        return
    progress.stage(ANALYSIS, len(units))
    tasks: Tasks[Any] = Tasks(_while_wanted(physical.unit_tasks(job, units, state.nodes), state), state.gate)
    for answer in _answers(engine, partial(work, job), tasks, state, controls):
        if isinstance(answer, Ended):
            progress.advance()
            continue
        _keep(answer, tasks, state)
        if isinstance(answer, More):
            progress.advance(0, more=len(answer.tasks))


def _while_wanted(tasks: Iterable[Any], state: State) -> Iterator[Any]:
    """The tasks, until every pair has reached its limit; what is under way then is still looked at, and counted."""
    waiting = iter(tasks)
    for task in waiting:
        if not state.open_nodes():
            state.left_out.update(dict.fromkeys(state.pairs, 1 + sum(1 for _ in waiting)))
            return
        yield task


def _add_up(mine: dict[int, Digest], more: Mapping[int, Digest]) -> None:
    for number, digest in more.items():
        mine[number] = mine.get(number, EMPTY) + digest


def _count_rows(state: State, sums: Mapping[str, Mapping[int, Digest]]) -> None:
    for node, side in sums.items():
        state.rows[node] = sum(digest.count for digest in side.values())
    state.rows_checked = max(state.rows.values(), default=0)


def compare_multisets(
    engine: Engine,
    job: Job,
    parts: Iterable[ScanPart],
    bits: int,
    state: State,
    controls: Sequence[Control],
    progress: Progress,
) -> None:
    """A table without a key: digests of all buckets, then the rows of those that differ."""
    scans = list(parts)
    progress.stage("hashing", len(scans))
    sums: dict[str, dict[int, Digest]] = {node: {} for node in state.nodes}
    for answer in _answers(engine, partial(keyless.scan_part, job), Tasks(scans, state.gate), state, controls):
        assert isinstance(answer, PartScanned)
        _add_up(sums[answer.node], answer.buckets)
        rows = sum(digest.count for digest in answer.buckets.values())
        progress.advance(rows=rows)
        _spend(state, rows)
    if state.failures:
        return
    state.blocks = len({bucket for side in sums.values() for bucket in side})
    state.mismatched_blocks = len(keyless.differing_buckets(sums))
    _count_rows(state, sums)
    if job.digests_only or not state.mismatched_blocks:
        return
    buckets = list(keyless.bucket_tasks(sums, bits, state.nodes))
    progress.stage(ANALYSIS, len(buckets))
    tasks: Tasks[Any] = Tasks(_while_wanted(buckets, state), state.gate)
    for answer in _answers(engine, partial(_keyless_work, job), tasks, state, controls):
        _keep(answer, tasks, state)
        progress.advance(0)


def _keyless_work(job: Job, task: Any, room: Room) -> Iterator[Any]:
    if isinstance(task, CompareBuckets):
        return keyless.compare_buckets(job, task, room)
    return compare_hashes(job, task, room)


def _keep(answer: Any, tasks: Tasks[Any], state: State) -> None:
    if isinstance(answer, More):
        if state.open_nodes():
            _given(state, answer.origin, len(answer.tasks))
            tasks.add(answer.tasks)
        else:
            state.broken.add(answer.origin)
            state.left_out.update(state.pairs)
    elif isinstance(answer, Found):
        # Packed once, for the journal and for the spool.
        packed = pack(answer.differences)
        if state.journal:
            state.journal.add(answer, packed)
        state.add(answer, packed)


def _answers(
    engine: Engine, what: Callable[..., Any], tasks: Tasks[Any], state: State, controls: Sequence[Control]
) -> Iterator[Any]:
    """The answers of tasks; failures are remembered, and one that concerns all blocks ends the run."""
    for answer in engine.run(what, tasks):
        if not isinstance(answer, Failure):
            yield answer
            continue
        state.failures.append(answer)
        state.broken.add(getattr(answer.task, "origin", NOWHERE))
        state.stopped = state.stopped or _reason_to_stop(answer.error, controls)
        if state.stopped is not None:
            state.left_out.update(dict.fromkeys(state.pairs, len(tasks.rest())))
            return


def _reason_to_stop(error: TrueupError, controls: Sequence[Control]) -> TrueupError | None:
    if isinstance(error, QueryError) and error.sqlstate in _FOR_ALL_BLOCKS:
        return error
    for control in controls:
        if not control.is_alive():
            return NodeError(
                "the connection that holds the snapshot was lost",
                cure="bring the node back and run again",
                node=control.node.name,
            )
    return error if isinstance(error, NodeError) else None
