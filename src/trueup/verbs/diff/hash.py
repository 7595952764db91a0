"""Hash a block on every node; where the digests differ, find the rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from trueup.db.reader import Reader
from trueup.engine.work import More, Room
from trueup.errors import TrueupError
from trueup.rows.digest import Digest, boundaries, digest, digests
from trueup.rows.keys import Block, chain
from trueup.task.compare.keys import compare_keys
from trueup.task.compare.model import Answer, CompareKeys, Hashed
from trueup.task.job import Job
from trueup.verbs.diff.split import LENIENT, split
from trueup.verbs.diff.units import compare_unit, differing_in, marks_of
from trueup.verbs.diff.work import CompareUnit, Ended, HashBlock, Task

# Rows per query of a gentle run: at first, and at least.
FIRST_STEP = 5_000
SMALLEST_STEP = 100


def work(job: Job, task: Task, room: Room) -> Iterator[Answer | Ended]:
    """Do a task of a diff; errors name the block."""
    try:
        for answer in _work(job, task, room):
            yield _stamped(answer, task.origin)
    except TrueupError as error:
        error.block = error.block or str(task.block)
        raise
    yield Ended(task.origin)


def _work(job: Job, task: Task, room: Room) -> Iterator[Answer]:
    if isinstance(task, HashBlock):
        yield from hash_block(job, task, room)
    elif isinstance(task, CompareUnit):
        yield from compare_unit(job, task, room)
    else:
        yield from compare_keys(job, task, room)


def _stamped(answer: Answer, origin: int) -> Answer:
    """Return the answer, and its new tasks, with the number of their block."""
    if isinstance(answer, More):
        tasks: tuple[Any, ...] = tuple(replace(task, origin=origin) for task in answer.tasks)
        return More(tasks, origin)
    return replace(answer, origin=origin)


def hash_block(job: Job, task: HashBlock, room: Room) -> Iterator[Answer]:
    """Compare the digests of a block on all its nodes."""
    if task.step:
        yield from _hash_piece(job, task, room)
    elif task.dense:
        yield from mark_block(job, task, room)
    else:
        yield from hash_units(job, task, room)


def hash_units(job: Job, task: HashBlock, room: Room) -> Iterator[Answer]:
    """Hash all units of a block in one statement, and compare or split those that differ."""
    units = chain(task.inner, within=task.block)
    sides = job.read(task.nodes, lambda reader: digests(reader, job.spec, units, timeout=job.timeout))
    counts = {node: sum(digest.count for digest in side) for node, side in sides.items()}
    differing = [number for number in range(len(units)) if len({side[number] for side in sides.values()}) > 1]
    if not task.counted:
        where = tuple(units[number] for number in differing) if job.digests_only else ()
        equal = tuple(
            None if number in differing else next(iter(sides.values()))[number] for number in range(len(units))
        )
        yield Hashed(
            task.block, counts, bool(differing), units=len(units), differing=len(differing), where=where, digests=equal
        )
    if job.digests_only:
        return
    small = [number for number in differing if max(side[number].count for side in sides.values()) <= job.unit * LENIENT]
    yield from _compare_units(job, task, [units[number] for number in small], room)
    for number in differing:
        if number not in small:
            rows = {node: side[number].count for node, side in sides.items()}
            yield from split(job, HashBlock(units[number], task.nodes, counted=True), rows, room)


def _compare_units(job: Job, task: HashBlock, units: Sequence[Block], room: Room) -> Iterator[Answer]:
    """Compare all units that differ at once, in a few round trips."""
    if not units:
        return
    if room.is_used_up:
        yield More(tuple(CompareUnit(unit, task.nodes) for unit in units))
        return
    before = differing_in(job, units, task.nodes, marks_of(job, units, task.nodes))
    yield from compare_keys(job, CompareKeys(before, task.nodes, task.block), room)


def mark_block(job: Job, task: HashBlock, room: Room) -> Iterator[Answer]:
    """Mark all rows of a block in one pass, instead of hashing the units and reading most of them again."""
    marks = marks_of(job, [task.block], task.nodes)
    before = differing_in(job, [task.block], task.nodes, marks)
    rows = {node: len(side[0]) for node, side in marks.items()}
    units = len(task.inner) + 1
    yield Hashed(task.block, rows, bool(before), units=units, differing=min(units, len(before)))
    yield from compare_keys(job, CompareKeys(before, task.nodes, task.block), room)


def _hash_piece(job: Job, task: HashBlock, room: Room) -> Iterator[Answer]:
    """Hash the first `step` rows of a block, and hand back the rest as another task."""
    block, rest = _piece(job, task)
    timed = job.read(task.nodes, lambda reader: _timed_digest(job, reader, block))
    sides = {node: digest for node, (digest, _) in timed.items()}
    rows = {node: side.count for node, side in sides.items()}
    mismatched = len(set(sides.values())) > 1
    slowest = max(seconds for _, seconds in timed.values())
    step = _next_step(job, task.step, max(rows.values()), slowest)
    if not task.counted:
        equal = (None if mismatched else next(iter(sides.values())),)
        yield Hashed(
            block, rows, mismatched, is_part=rest is not None, step=step, differing=int(mismatched), digests=equal
        )
    if mismatched and not job.digests_only:
        yield from split(job, HashBlock(block, task.nodes, counted=True), rows, room)
    if rest is not None:
        yield More((replace(task, block=rest, step=step),))


def _timed_digest(job: Job, reader: Reader, block: Block) -> tuple[Digest, float]:
    """Return the digest, and the seconds that the query took."""
    reader.warm_up()
    started = time.monotonic()
    return digest(reader, job.spec, block, timeout=job.timeout), time.monotonic() - started


def _piece(job: Job, task: HashBlock) -> tuple[Block, Block | None]:
    """Return the first `step` rows of a block, counted on the first node that has them, and the rest of the block."""
    for node in task.nodes:
        edges = job.read(
            (node,),
            lambda reader: boundaries(reader, job.spec, task.block, step=task.step, steps=1, timeout=job.timeout * 4),
        )[node]
        if edges and edges[0] != task.block.start:
            first, rest = chain(edges[:1], within=task.block)
            return first, rest
    return task.block, None


def _next_step(job: Job, step: int, rows: int, seconds: float) -> int:
    """Return the rows with which the next query takes about `query_seconds`, at most twice the current number."""
    target = step
    if rows < SMALLEST_STEP:
        # For this few rows the time depends on the query and not on the rows.
        return step
    if seconds > job.query_seconds:
        target = int(rows * job.query_seconds / seconds)
    elif rows >= step:
        # With fewer rows than a step the block has ended, and the time does not count.
        target = int(step * min(2.0, job.query_seconds / max(seconds, 0.001))) + 1
    target = max(SMALLEST_STEP, target)
    return min(target, job.max_rows_per_query or target)
