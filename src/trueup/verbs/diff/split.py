"""Split a block that differs into sub-blocks along its key index, and continue with those that differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trueup.engine.work import More, Room
from trueup.rows.digest import boundaries, digests
from trueup.rows.keys import Block, chain
from trueup.task.compare.model import Answer
from trueup.task.job import Job
from trueup.verbs.diff.units import compare_unit
from trueup.verbs.diff.work import CompareUnit, HashBlock

# Sub-blocks that are cut and hashed at once: few round trips per block, and statements of bounded length.
_SUB_BLOCKS = 32
# Units are cut by a sample: up to this many times the configured rows, they are not split further.
LENIENT = 2


def split(job: Job, task: HashBlock, counts: Mapping[str, int], room: Room) -> Iterator[Answer]:
    """Split down to units of at most `compare_unit_size` rows on the largest node; compare those that differ."""
    if max(counts.values()) <= job.unit * LENIENT:
        yield from compare_unit(job, CompareUnit(task.block, task.nodes), room)
        return
    largest = max(counts, key=lambda node: counts[node])
    rest: Block | None = task.block
    while rest is not None:
        if room.is_used_up:
            yield More((HashBlock(rest, task.nodes, counted=True),))
            return
        blocks, rest = _next_blocks(job, largest, rest)
        yield from _compare_blocks(job, task, blocks, room)


def _next_blocks(job: Job, node: str, rest: Block) -> tuple[list[Block], Block | None]:
    """Return the next sub-blocks, and the rest of the block."""
    edges = job.read(
        (node,),
        lambda reader: boundaries(reader, job.spec, rest, step=job.unit, steps=_SUB_BLOCKS, timeout=job.timeout * 4),
    )[node]
    blocks = chain(edges, within=rest)
    if len(edges) < _SUB_BLOCKS:
        return blocks, None
    return blocks[:-1], blocks[-1]


def _compare_blocks(job: Job, task: HashBlock, blocks: list[Block], room: Room) -> Iterator[Answer]:
    sides = job.read(task.nodes, lambda reader: digests(reader, job.spec, blocks, timeout=job.timeout))
    for number, block in enumerate(blocks):
        of_block = {node: side[number] for node, side in sides.items()}
        if len(set(of_block.values())) == 1:
            continue
        smaller = HashBlock(block, task.nodes, counted=True)
        if block == task.block:
            # It cannot be split: its rows have one key, which the comparison reports.
            yield from compare_unit(job, CompareUnit(block, task.nodes), room)
            continue
        if room.is_used_up:
            yield More((smaller,))
        else:
            yield from split(job, smaller, {node: digest.count for node, digest in of_block.items()}, room)
