"""The state of a run: rows and blocks counted, differences spooled, limits, failures."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from trueup.db.snapshot import Control
from trueup.engine.progress import Progress
from trueup.engine.work import Engine, Failure
from trueup.errors import TrueupError
from trueup.report.extent import Extent
from trueup.rows.align import Difference, Kind, Pair, kinds_of, pairs_of
from trueup.rows.digest import Digest
from trueup.rows.keys import Block
from trueup.rows.proven import Certifying, ProvenTable
from trueup.rows.request import TableRequest
from trueup.rows.spec import TableSpec
from trueup.task.compare.certify import add_digests
from trueup.task.compare.model import Found, Hashed
from trueup.task.compare.spool import Spool
from trueup.task.job import Job
from trueup.task.steering import Steering


class Journal(Protocol):
    """Records what a run has finished, so that it can be resumed."""

    def add(self, answer: Hashed | Found, packed: bytes | None = None) -> None:
        """Record an answer; `packed` is its packed differences, if they are already packed."""

    def done(self, origin: int) -> None:
        """Record that a block of the plan is finished."""


@dataclass
class State:
    """What a run has compared, what it found, and what it did not compare."""

    nodes: tuple[str, ...]
    max_rows: int
    suspects: Spool
    rows: Counter[str] = field(default_factory=Counter)
    # Of these, rows of blocks that were hashed in an earlier snapshot.
    earlier: Counter[str] = field(default_factory=Counter)
    # Per node, what the other rows must be: all rows of the snapshot, counted without a condition on the key. Without a
    # snapshot, the rows that have NULL in the key.
    counted: dict[str, int] = field(default_factory=dict)
    without_key: dict[str, int] = field(default_factory=dict)
    rows_checked: int = 0
    blocks: int = 0
    # Blocks of the plan that were read before the run was resumed, in earlier snapshots.
    earlier_blocks: int = 0
    # Blocks of this run by the engine that compared them.
    ran_on: Counter[str] = field(default_factory=Counter)
    # Ranges whose digests differ, each with the number of its block: the block, or a unit of it.
    mismatched: list[tuple[int, Block]] = field(default_factory=list)
    mismatched_blocks: int = 0
    # Of a check: how many of `mismatched` were not hashed again because others stayed different.
    seen_once: int = 0
    differing: set[int] = field(default_factory=set)
    found: Counter[Pair] = field(default_factory=Counter)
    # Of the suspects, per pair: how many of each kind or hot (see `limit`); and per node: how often it is alone.
    kinds: dict[Pair, Counter[str]] = field(default_factory=dict)
    alone: Counter[str] = field(default_factory=Counter)
    in_flight: Counter[Pair] = field(default_factory=Counter)
    # Per pair: differences beyond the limit, which are not kept, and blocks that were not compared.
    cut: Counter[Pair] = field(default_factory=Counter)
    left_out: Counter[Pair] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    stopped: TrueupError | None = None
    steering: Steering | None = None
    journal: Journal | None = None
    # Unfinished tasks per block, and blocks of which a part was not compared.
    under_way: Counter[int] = field(default_factory=Counter)
    broken: set[int] = field(default_factory=set)
    # Blocks whose digests differ and in which no row was found to differ (yet).
    unexplained: set[int] = field(default_factory=set)
    # Per block of the plan: the digests of its units that are equal on all nodes, see `certify`.
    digests: dict[int, tuple[Digest | None, ...]] = field(default_factory=dict)
    # With --certify: the table of the validation, from before the snapshots.
    certifying: Certifying | None = None
    # With --since-proof: what was taken from a certificate, or why nothing was.
    proven: ProvenTable | None = None

    @property
    def pairs(self) -> list[Pair]:
        """All pairs of nodes."""
        return pairs_of(self.nodes)

    @property
    def gate(self) -> Callable[[int], int] | None:
        """The function that limits how many tasks may start."""
        return self.steering.gate if self.steering else None

    def sleep(self, seconds: float) -> None:
        """Wait; raise Interrupted when the run is stopped."""
        if self.steering:
            self.steering.sleep(seconds)
        else:
            time.sleep(seconds)

    def full_pairs(self) -> list[Pair]:
        """Return the pairs that have reached the limit of differences."""
        return [pair for pair in self.pairs if self.found[pair] >= self.max_rows]

    def open_nodes(self) -> tuple[str, ...]:
        """Return the nodes of pairs below the limit of differences; none when all pairs have reached it."""
        full = set(self.full_pairs())
        nodes = {node for pair in self.pairs if pair not in full for node in pair}
        return tuple(node for node in self.nodes if node in nodes)

    def hashed(self, answer: Hashed) -> None:
        """Count a block, or a part of one."""
        self.blocks += not answer.is_part
        self.rows.update(answer.counts)
        self.rows_checked += max(answer.counts.values())
        if self.certifying is not None:
            add_digests(self.digests, answer)
        if answer.mismatched:
            self.differs(answer.origin, answer.where or (answer.block,))
        for pair in self.pairs:
            if pair[0] not in answer.counts or pair[1] not in answer.counts:
                self.left_out[pair] += 1

    def differs(self, origin: int, parts: Sequence[Block]) -> None:
        """Note parts of a block whose digests differ."""
        # Several parts of one block count as one block.
        self.mismatched_blocks += origin not in self.differing
        self.differing.add(origin)
        self.mismatched += [(origin, part) for part in parts]
        self.unexplained.add(origin)

    def add(self, answer: Found, packed: bytes | None = None) -> None:
        """Keep differences up to the limit; `packed` is the same differences, if they are already packed."""
        self.in_flight.update(answer.in_flight)
        if answer.differences:
            self.unexplained.discard(answer.origin)
        kept = []
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
                kept.append(difference)
                self._count(difference, kinds, ())
        self.suspects.add(kept, packed if len(kept) == len(answer.differences) else None)

    def keep(self, differences: Sequence[Difference]) -> None:
        """Keep differences that were re-checked."""
        for difference in differences:
            self.count(difference)
        self.suspects.add(differences)

    def count(self, difference: Difference, accepted: Collection[Pair] = ()) -> dict[Pair, int]:
        """Count a suspect; return the rows that are counted as accepted, of the pairs for which it is accepted."""
        return self._count(difference, kinds_of(difference), accepted)

    def _count(
        self, difference: Difference, kinds: Sequence[tuple[Pair, Kind, int]], accepted: Collection[Pair]
    ) -> dict[Pair, int]:
        if not difference.moved and not (accepted and all(pair in accepted for pair, _, _ in kinds)):
            self.alone.update(alone_with(difference))
        counted = {}
        for pair, kind, rows in kinds:
            counts = self.kinds.setdefault(pair, Counter())
            limit = self.limit(pair)
            if limit is None or counts.total() < limit:
                if pair in accepted:
                    counted[pair] = rows
                counts["accepted" if pair in accepted else "hot" if difference.is_hot(pair) else kind] += rows
        return counted

    def limit(self, pair: Pair) -> int | None:
        """Return the number of differing rows at which a pair's list ends, or None if all that was found is listed.

        Without a cut there is no limit: a re-check may find more copies of a row than were found at first.
        """
        return self.max_rows if self.cut[pair] else None

    def take_suspects(self, spool: Spool) -> Spool:
        """Return the suspects for a re-check; those that still differ are added again with `keep`."""
        before, self.suspects = self.suspects, spool
        self.kinds.clear()
        self.alone.clear()
        return before


@dataclass(frozen=True)
class Comparison:
    """A run over one table: what is compared, what compares it, and where the answers go."""

    request: TableRequest
    job: Job
    engine: Engine
    controls: Sequence[Control]
    state: State
    progress: Progress

    @property
    def spec(self) -> TableSpec:
        """The table, as it is compared."""
        return self.job.spec

    @property
    def extent(self) -> Extent:
        """Which rows and columns are compared."""
        return Extent(self.spec.filter, left_out=self.spec.left_out)


def alone_with(difference: Difference) -> tuple[str, ...]:
    """Return the node whose row differs while all other nodes agree, if there is one."""
    if len(difference.nodes) < 3 or len(difference.groups) != 2:
        return ()
    return tuple(group.nodes[0] for group in difference.groups if len(group.nodes) == 1)


def new_spool(request: TableRequest) -> Spool:
    """Return an empty spool in the folder of the reports."""
    return Spool(Path(request.settings.report_dir or ".").absolute())


def new_state(request: TableRequest, steering: Steering | None, certifying: Certifying | None = None) -> State:
    """Return the state of a run that has compared nothing yet.

    A rerun has no limit: its keys are given, and a key of a keyless table may be any number of rows.
    """
    limit = sys.maxsize if request.rerun_of else request.settings.max_diff_rows
    return State(request.node_names, limit, new_spool(request), steering=steering, certifying=certifying)
