"""One block on every node: hash it, and where the digests disagree carry it down to the rows."""

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
from trueup.verbs.diff.compare import compare_unit, differing_in, marks_of
from trueup.verbs.diff.split import LENIENT, split
from trueup.verbs.diff.work import CompareUnit, Ended, HashBlock, Task

# A gentle run begins with so many rows a query, and never takes fewer than the second number.
FIRST_STEP = 5_000
_SMALLEST_STEP = 100


def work(job: Job, task: Task, room: Room) -> Iterator[Answer | Ended]:
    """What a worker does with any task of a diff; errors leave with table and block on them."""
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
    """The answer, and what is left to do, with the block of the plan they belong to."""
    if isinstance(answer, More):
        tasks: tuple[Any, ...] = tuple(replace(each, origin=origin) for each in answer.tasks)
        return More(tasks, origin)
    return replace(answer, origin=origin)


def hash_block(job: Job, task: HashBlock, room: Room) -> Iterator[Answer]:
    """Digests of a block from all its nodes; equal ones are proof enough."""
    if task.step:
        yield from _hash_piece(job, task, room)
    elif task.dense:
        yield from _mark_block(job, task, room)
    else:
        yield from _hash_units(job, task, room)


def _hash_units(job: Job, task: HashBlock, room: Room) -> Iterator[Answer]:
    """All units of a block in one statement; those that differ are looked into."""
    units = chain(task.inner, within=task.block)
    found = job.read(task.nodes, lambda reader: digests(reader, job.spec, units, timeout=job.timeout))
    counts = {node: sum(each.count for each in mine) for node, mine in found.items()}
    differing = [at for at in range(len(units)) if len({mine[at] for mine in found.values()}) > 1]
    if not task.counted:
        where = tuple(units[at] for at in differing) if job.digests_only else ()
        yield Hashed(task.block, counts, bool(differing), units=len(units), differing=len(differing), where=where)
    if job.digests_only:
        return
    small = [at for at in differing if max(mine[at].count for mine in found.values()) <= job.unit * LENIENT]
    yield from _compare_units(job, task, [units[at] for at in small], room)
    for at in differing:
        if at not in small:
            here = {node: mine[at].count for node, mine in found.items()}
            yield from split(job, HashBlock(units[at], task.nodes, counted=True), here, room)


def _compare_units(job: Job, task: HashBlock, units: Sequence[Block], room: Room) -> Iterator[Answer]:
    """The units that differ together: a few round trips for a block, however many they are."""
    if not units:
        return
    if room.is_used_up:
        yield More(tuple(CompareUnit(unit, task.nodes) for unit in units))
        return
    before = differing_in(job, units, task.nodes, marks_of(job, units, task.nodes))
    yield from compare_keys(job, CompareKeys(before, task.nodes, task.block), room)


def _mark_block(job: Job, task: HashBlock, room: Room) -> Iterator[Answer]:
    """One pass instead of two where nearly every unit would be read twice."""
    marks = marks_of(job, [task.block], task.nodes)
    before = differing_in(job, [task.block], task.nodes, marks)
    rows = {node: len(mine[0]) for node, mine in marks.items()}
    units = len(task.inner) + 1
    yield Hashed(task.block, rows, bool(before), units=units, differing=min(units, len(before)))
    yield from compare_keys(job, CompareKeys(before, task.nodes, task.block), room)


def _hash_piece(job: Job, task: HashBlock, room: Room) -> Iterator[Answer]:
    """The next rows of a block, as many as the step says; the rest comes later."""
    block, rest = _piece(job, task)
    timed = job.read(task.nodes, lambda reader: _timed_digest(job, reader, block))
    digests = {node: found for node, (found, _) in timed.items()}
    rows = {node: found.count for node, found in digests.items()}
    mismatched = len(set(digests.values())) > 1
    slowest = max(seconds for _, seconds in timed.values())
    step = _next_step(job, task.step, max(rows.values()), slowest)
    if not task.counted:
        yield Hashed(block, rows, mismatched, is_part=rest is not None, step=step, differing=int(mismatched))
    if mismatched and not job.digests_only:
        yield from split(job, HashBlock(block, task.nodes, counted=True), rows, room)
    if rest is not None:
        yield More((replace(task, block=rest, step=step),))


def _timed_digest(job: Job, reader: Reader, block: Block) -> tuple[Digest, float]:
    """The digest, and the seconds that the node took for it."""
    reader.warm_up()
    started = time.monotonic()
    return digest(reader, job.spec, block, timeout=job.timeout), time.monotonic() - started


def _piece(job: Job, task: HashBlock) -> tuple[Block, Block | None]:
    """The first rows of a block, so many as the step says on the first node that has them; and what is left."""
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
    """So many rows that the next query takes about as long as one may; never more than twice as many at once."""
    aimed = step
    if rows < _SMALLEST_STEP:
        # The time of so few rows is that of the query itself.
        return step
    if seconds > job.query_seconds:
        aimed = int(rows * job.query_seconds / seconds)
    elif rows >= step:
        # Fewer rows than a step say nothing: the block ended.
        aimed = int(step * min(2.0, job.query_seconds / max(seconds, 0.001))) + 1
    aimed = max(_SMALLEST_STEP, aimed)
    return min(aimed, job.most_rows_a_query or aimed)
