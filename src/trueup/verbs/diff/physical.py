"""Compare a large table whose keys have no relation to the place of rows, such as random UUIDs, by scans of its pages.

The rows of a range of such keys are spread over the whole table, so reading range after range reads most pages many
times. Digests add up, so each node is scanned once instead, in parts of consecutive pages, and each row is counted
for its unit; the driver adds up the parts of a unit. Rows keep their pages only within a snapshot, and digests of two
snapshots must not be added up: such a run cannot be resumed, it starts again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

from psycopg import sql

from trueup.db import catalog
from trueup.db.reader import Reader
from trueup.db.snapshot import Control
from trueup.engine.work import More, Room, Tasks
from trueup.rows.digest import EMPTY, Digest
from trueup.rows.encode import row_hash
from trueup.rows.keys import Block, KeyValues, chain, literals, ordered, source, where
from trueup.rows.pages import on_pages, page_count
from trueup.rows.spec import TableSpec
from trueup.rows.types import type_of
from trueup.task.compare.model import NOWHERE, Ranges
from trueup.task.compare.state import Comparison
from trueup.task.job import Job
from trueup.verbs.diff.answers import ANALYSIS, add_up, answers, count_rows, keep, until_full
from trueup.verbs.diff.hash import work
from trueup.verbs.diff.work import CompareUnit, Ended, HashBlock

# Pages per part: 64 MB of table.
PAGES_PER_PART = 8192
# A smaller table fits into memory, so it is read from disk only once in any order.
FEWEST_PAGES = 2 * PAGES_PER_PART
# The planner's correlation of key and row order: 1 is in order, 0 is random.
_SCATTERED = 0.3
_WHOLE = Block(None, None)


@dataclass(frozen=True)
class ScanPages:
    """Task: digest the units of one part of a node's table, pages `first` up to `end` (None: up to the last)."""

    node: str
    first: int
    end: int | None
    cuts: tuple[KeyValues, ...]
    block: Block = _WHOLE
    origin: int = NOWHERE


@dataclass(frozen=True)
class PagesScanned:
    """Answer: the digests of one part by the number of the unit."""

    node: str
    units: Mapping[int, Digest]


def compare_pages(run: Comparison, ranges: Ranges) -> None:
    """Scan each node once, then compare the units that differ."""
    job, state, progress = run.job, run.state, run.progress
    cuts = all_cuts(ranges)
    scans = page_tasks(run.controls, job.spec, cuts)
    progress.stage("hashing", len(scans))
    sums: dict[str, dict[int, Digest]] = {node: {} for node in state.nodes}
    parts: Tasks[Any] = Tasks(scans, state.gate, expected=len(scans))
    for answer in answers(run, partial(scan_pages, job), parts):
        assert isinstance(answer, PagesScanned)
        state.ran_on[parts.ran_on] += 1
        add_up(sums[answer.node], answer.units)
        progress.advance(rows=sum(digest.count for digest in answer.units.values()))
    if state.failures:
        return
    state.blocks = len(cuts) + 1
    state.counted = {node: sum(digest.count for digest in side.values()) for node, side in sums.items()}
    # A row without a key is in no unit.
    sums = {node: {unit: side[unit] for unit in range(len(cuts) + 1) if unit in side} for node, side in sums.items()}
    count_rows(state, sums)
    if state.certifying is not None:
        state.digests = _digests(sums, ranges)
    units = differing_units(sums, cuts)
    state.mismatched_blocks = len(units)
    state.mismatched = [(origin_of(number), block) for number, (block, _) in enumerate(units)]
    state.unexplained.update(origin_of(number) for number in range(len(units)))
    if job.digests_only or not units:
        return
    progress.stage(ANALYSIS, len(units))
    waiting = until_full(unit_tasks(job, units, state.nodes), state)
    tasks: Tasks[Any] = Tasks(waiting, state.gate, expected=len(units))
    for answer in answers(run, partial(work, job), tasks):
        if isinstance(answer, Ended):
            progress.advance()
            continue
        keep(answer, tasks, state)
        if isinstance(answer, More):
            progress.advance(0, more=len(answer.tasks))


def is_scattered(controls: Sequence[Control], spec: TableSpec) -> bool:
    """Whether to scan by pages: the table is large, and its key has no relation to the place of rows."""
    if len(spec.key) != 1 or spec.key[0].order != "type" or not type_of(spec.key[0].column).page_scan:
        return False
    name = spec.key[0].column.name
    return any(
        page_count(control.connection, spec) >= FEWEST_PAGES
        and (correlation := catalog.correlation(control.connection, spec.schema, spec.table, name)) is not None
        and abs(correlation) < _SCATTERED
        for control in controls
    )


def all_cuts(ranges: Ranges) -> tuple[KeyValues, ...]:
    """Return the boundaries of all units of all blocks, in order."""
    cuts: list[KeyValues] = []
    for number, block in enumerate(ranges.blocks):
        if block.start is not None:
            cuts.append(block.start)
        cuts += ranges.inside(number)
    return tuple(cuts)


def page_tasks(controls: Sequence[Control], spec: TableSpec, cuts: tuple[KeyValues, ...]) -> list[ScanPages]:
    """Return the parts of all nodes in turn, so that all nodes are busy."""
    parts: list[list[ScanPages]] = []
    for control in controls:
        firsts = list(range(0, page_count(control.connection, spec), PAGES_PER_PART)) or [0]
        ends = [*firsts[1:], None]
        parts.append([ScanPages(control.node.name, *edges, cuts) for edges in zip(firsts, ends, strict=True)])
    return [part for same_number in zip_longest(*parts) for part in same_number if part is not None]


def scan_pages(job: Job, task: ScanPages, room: Room) -> Iterator[PagesScanned]:
    """Count and add up the hashes of one part of one node, by unit."""
    query = sql.SQL("SELECT {unit}, count(*), sum({hash})::text FROM {source}{where} GROUP BY 1").format(
        unit=_unit(job.spec, task.cuts),
        hash=row_hash(job.spec),
        source=source(job.spec),
        where=where(job.spec, *on_pages(task.first, task.end)),
    )

    def ask(reader: Reader) -> list[tuple[Any, ...]]:
        # The planner overestimates the number of units, and would sort all rows.
        reader.rows(sql.SQL("SELECT set_config('enable_sort', 'off', true)").format())
        return list(reader.rows(query))

    rows = job.read((task.node,), ask)[task.node]
    yield PagesScanned(task.node, {unit: Digest(count, int(total)) for unit, count, total in rows})


def _unit(spec: TableSpec, cuts: Sequence[KeyValues]) -> sql.Composed:
    """Return the expression for the number of a row's unit: the boundaries at or before its key."""
    listed = sql.SQL(", ").join(literals(spec.key, cut)[0] for cut in cuts)
    return sql.SQL("width_bucket({}, ARRAY[{}]::{}[])").format(
        ordered(spec.key[0]), listed, sql.SQL(spec.key[0].column.type)
    )


def differing_units(
    sums: Mapping[str, Mapping[int, Digest]], cuts: Sequence[KeyValues]
) -> list[tuple[Block, dict[str, int]]]:
    """Return the units whose digests differ, with their rows per node."""
    units = []
    for number, block in enumerate(chain(cuts)):
        of_unit = {node: side.get(number, EMPTY) for node, side in sums.items()}
        if len(set(of_unit.values())) > 1:
            units.append((block, {node: digest.count for node, digest in of_unit.items()}))
    return units


def _digests(sums: Mapping[str, Mapping[int, Digest]], ranges: Ranges) -> dict[int, tuple[Digest | None, ...]]:
    """Return per block the digests of its units that are equal on all nodes."""
    digests: dict[int, tuple[Digest | None, ...]] = {}
    first = 0
    for block in range(len(ranges.blocks)):
        last = first + len(ranges.inside(block)) + 1
        found = [{side.get(unit, EMPTY) for side in sums.values()} for unit in range(first, last)]
        digests[block] = tuple(of_unit.pop() if len(of_unit) == 1 else None for of_unit in found)
        first = last
    return digests


def unit_tasks(
    job: Job, units: Sequence[tuple[Block, Mapping[str, int]]], nodes: tuple[str, ...]
) -> Iterator[CompareUnit | HashBlock]:
    """Yield a task per unit that differs: a small one is compared, a large one is split first."""
    for number, (block, counts) in enumerate(units):
        if max(counts.values()) <= job.unit:
            yield CompareUnit(block, nodes, origin=origin_of(number))
        else:
            yield HashBlock(block, nodes, counted=True, origin=origin_of(number))


def origin_of(number: int) -> int:
    """Return the origin of a unit that differs: a negative number, because it is no block of the plan."""
    return -2 - number
