"""What the tasks answer, gathered: rows and blocks counted, differences spooled, limits kept, failures remembered."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from trueup.db.snapshot import Control
from trueup.engine.progress import Progress
from trueup.engine.work import Engine, Failure, More, Room, Tasks
from trueup.errors import NodeError, QueryError, TrueupError
from trueup.rows.align import Difference, Pair, kinds_of, pack, pairs_of
from trueup.rows.digest import EMPTY, Digest
from trueup.rows.keys import Block, KeyValues
from trueup.task.job import Job
from trueup.task.steering import Steering
from trueup.verbs.diff import keyless, physical
from trueup.verbs.diff.hash import FIRST_STEP, work
from trueup.verbs.diff.journal import Journal
from trueup.verbs.diff.keyless import CompareBuckets, PartScanned, ScanPart
from trueup.verbs.diff.ranges import Ranges
from trueup.verbs.diff.spool import Spool
from trueup.verbs.diff.work import NOWHERE, Ended, Found, HashBlock, Hashed

ANALYSIS = "mismatch analysis"
# Above this share of differing units a single pass over the rows is quicker than two; it stays so down to the second.
_DENSE, _STILL_DENSE = 0.3, 0.1
_ENOUGH_UNITS = 15
_FORGETTING = 0.6
# Conditions of the whole table, not of one block: going on would only meet them again.
_FOR_ALL_BLOCKS = ("42P01", "42703", "42501", "55P03", "3F000", "53100", "53200")


@dataclass
class Collected:
    """The state of a run: what was looked at, what was found, and what was not looked at."""

    nodes: tuple[str, ...]
    max_rows: int
    suspects: Spool
    rows: Counter[str] = field(default_factory=Counter)
    rows_checked: int = 0
    blocks: int = 0
    # What differs by its digests: the number of its block, and the block or the unit of it.
    mismatched: list[tuple[int, Block]] = field(default_factory=list)
    mismatched_blocks: int = 0
    # Of a check: how many of these were not looked at again, because others stayed different.
    seen_once: int = 0
    differing: set[int] = field(default_factory=set)
    found: Counter[Pair] = field(default_factory=Counter)
    # Of the suspects: how many of each kind a pair has (never more than the limit), and which node stands alone.
    kinds: dict[Pair, Counter[str]] = field(default_factory=dict)
    alone: Counter[str] = field(default_factory=Counter)
    in_flight: Counter[Pair] = field(default_factory=Counter)
    # Pairs of which more differences were seen than are kept, and blocks that were not compared for a pair.
    cut: Counter[Pair] = field(default_factory=Counter)
    left_out: Counter[Pair] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    stopped: TrueupError | None = None
    # Who is asked before tasks begin, and where what is finished is written down.
    steering: Steering | None = None
    journal: Journal | None = None
    # Tasks of each block that are still to end, and blocks of which something was not looked at.
    under_way: Counter[int] = field(default_factory=Counter)
    broken: set[int] = field(default_factory=set)
    # Blocks that differ by their digests and in which no row was found to differ (yet).
    unexplained: set[int] = field(default_factory=set)

    @property
    def pairs(self) -> list[Pair]:
        """Every pair of the run."""
        return pairs_of(self.nodes)

    @property
    def gate(self) -> Callable[[int], int] | None:
        """Who is asked before tasks begin."""
        return self.steering.gate if self.steering else None

    def sleep(self, seconds: float) -> None:
        """Wait so long, and no longer than until the run is to end."""
        if self.steering:
            self.steering.sleep(seconds)
        else:
            time.sleep(seconds)

    def full_pairs(self) -> list[Pair]:
        """The pairs that have reached their limit."""
        return [pair for pair in self.pairs if self.found[pair] >= self.max_rows]

    def wanted_nodes(self) -> tuple[str, ...]:
        """The nodes of pairs that still have room; none when all are full."""
        full = set(self.full_pairs())
        wanted = {node for pair in self.pairs if pair not in full for node in pair}
        return tuple(node for node in self.nodes if node in wanted)

    def hashed(self, answer: Hashed) -> None:
        """Count a block, or a piece of one."""
        self.blocks += not answer.is_part
        self.rows.update(answer.counts)
        self.rows_checked += max(answer.counts.values())
        if answer.mismatched:
            # Several pieces of one block are one block.
            self.mismatched_blocks += answer.origin not in self.differing
            self.differing.add(answer.origin)
            self.mismatched += [(answer.origin, part) for part in answer.where or (answer.block,)]
            self.unexplained.add(answer.origin)
        for pair in self.pairs:
            if pair[0] not in answer.counts or pair[1] not in answer.counts:
                self.left_out[pair] += 1

    def found_in(self, answer: Found, packed: bytes | None = None) -> None:
        """Keep the differences of a block; `packed`: the same, where they are packed already."""
        self.in_flight.update(answer.in_flight)
        if answer.differences:
            self.unexplained.discard(answer.origin)
        wanted = []
        for difference in answer.differences:
            kinds = kinds_of(difference)
            has_room = False
            for pair, _, rows in kinds:
                if self.found[pair] >= self.max_rows:
                    self.cut[pair] += 1
                    continue
                self.found[pair] += rows
                has_room = True
            if has_room:
                wanted.append(difference)
                self._count(difference, kinds)
        self.suspects.add(wanted, packed if len(wanted) == len(answer.differences) else None)

    def keep(self, differences: Sequence[Difference]) -> None:
        """Differences that were looked at again."""
        for difference in differences:
            self._count(difference, kinds_of(difference))
        self.suspects.add(differences)

    def _count(self, difference: Difference, kinds: Iterable[tuple[Pair, str, int]]) -> None:
        self.alone.update(alone_with(difference))
        for pair, kind, rows in kinds:
            counts = self.kinds.setdefault(pair, Counter())
            if counts.total() < self.max_rows:
                counts[kind] += rows

    def look_again(self, spool: Spool) -> Spool:
        """Take the suspects out, to look at them again; those that stay come back through `keep`."""
        before, self.suspects = self.suspects, spool
        self.kinds.clear()
        self.alone.clear()
        return before


def alone_with(difference: Difference) -> tuple[str, ...]:
    """The one node that all others contradict in unison."""
    if len(difference.nodes) < 3 or len(difference.groups) != 2:
        return ()
    return tuple(group.nodes[0] for group in difference.groups if len(group.nodes) == 1)


def compare_blocks(
    engine: Engine,
    job: Job,
    blocks: Mapping[int, Block],
    state: Collected,
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
            nodes = state.wanted_nodes()
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


def _spend(state: Collected, rows: int) -> None:
    if state.steering:
        state.steering.spend(rows)


def _given(state: Collected, origin: int, tasks: int = 1) -> None:
    state.under_way[origin] += tasks


def _ended(state: Collected, origin: int) -> bool:
    """A task came to its end; True if it was the last one of its block."""
    state.under_way[origin] -= 1
    if state.under_way[origin]:
        return False
    del state.under_way[origin]
    if state.journal and origin not in state.broken:
        state.journal.done(origin)
    return True


def compare_pages(
    engine: Engine, job: Job, ranges: Ranges, state: Collected, controls: Sequence[Control], progress: Progress
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


def _while_wanted(tasks: Iterable[Any], state: Collected) -> Iterator[Any]:
    """The tasks, until every pair has reached its limit; what is under way then is still looked at, and counted."""
    waiting = iter(tasks)
    for task in waiting:
        if not state.wanted_nodes():
            state.left_out.update(dict.fromkeys(state.pairs, 1 + sum(1 for _ in waiting)))
            return
        yield task


def _add_up(mine: dict[int, Digest], more: Mapping[int, Digest]) -> None:
    for number, digest in more.items():
        mine[number] = mine.get(number, EMPTY) + digest


def _count_rows(state: Collected, sums: Mapping[str, Mapping[int, Digest]]) -> None:
    for node, side in sums.items():
        state.rows[node] = sum(digest.count for digest in side.values())
    state.rows_checked = max(state.rows.values(), default=0)


def compare_multisets(
    engine: Engine,
    job: Job,
    parts: Iterable[ScanPart],
    bits: int,
    state: Collected,
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
    return keyless.compare_hashes(job, task, room)


def _keep(answer: Any, tasks: Tasks[Any], state: Collected) -> None:
    if isinstance(answer, More):
        if state.wanted_nodes():
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
        state.found_in(answer, packed)


def _answers(
    engine: Engine, what: Callable[..., Any], tasks: Tasks[Any], state: Collected, controls: Sequence[Control]
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
