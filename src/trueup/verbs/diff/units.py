"""Find the keys that differ in a unit, by marks and row hashes, and compare their rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from trueup.engine.work import More, Room
from trueup.rows.fetch import hashes_in_block
from trueup.rows.keys import Block
from trueup.rows.marks import Marks, differing_marks, hashes_of, is_whole_number, marks_in_blocks, rows_with
from trueup.task.compare.keys import compare_keys, known_in
from trueup.task.compare.model import Answer, CompareKeys, Known
from trueup.task.job import Job
from trueup.verbs.diff.work import CompareUnit


def compare_unit(job: Job, task: CompareUnit, room: Room) -> Iterator[Answer]:
    """Read the marks of a unit from all nodes, and whole rows only of the keys that differ."""
    if room.is_used_up:
        yield More((task,))
        return
    before = differing_in(job, [task.block], task.nodes, marks_of(job, [task.block], task.nodes))
    yield from compare_keys(job, CompareKeys(before, task.nodes, task.block), room)


def marks_of(job: Job, blocks: Sequence[Block], nodes: Sequence[str]) -> dict[str, list[Marks]]:
    """Return per node the marks of these blocks."""
    return job.read(nodes, lambda reader: marks_in_blocks(reader, job.spec, blocks, timeout=job.timeout * 4))


def differing_in(
    job: Job, blocks: Sequence[Block], nodes: Sequence[str], marks: Mapping[str, Sequence[Marks]]
) -> tuple[Known, ...]:
    """Return the keys of these blocks whose marks differ, with their hashes in the order of `nodes`."""
    known: list[Known] = []
    for number, block in enumerate(blocks):
        known += _differing(job, block, nodes, [marks[node][number] for node in nodes])
    return tuple(known)


def _differing(job: Job, block: Block, nodes: Sequence[str], sides: Sequence[Marks]) -> list[Known]:
    timeout = job.timeout * 4
    if any(side.has_twins for side in sides):
        # Marks do not identify the rows: read the keys, which raises if they are not unique.
        return known_in(
            nodes, job.read(nodes, lambda reader: hashes_in_block(reader, job.spec, block, timeout=timeout))
        )
    marks = differing_marks(sides)
    values = marks.tolist()
    if is_whole_number(job.spec):
        keys = [(str(key),) for key in values]
        return list(zip(keys, zip(*(hashes_of(side, marks) for side in sides), strict=True), strict=True))
    if not values:
        return []
    return known_in(nodes, job.read(nodes, lambda reader: rows_with(reader, job.spec, block, values, timeout=timeout)))
