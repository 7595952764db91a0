"""A block that differs: walk its key index into sub-blocks, hash these, go on only with those that differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trueup.engine.work import More, Room
from trueup.rows.digest import boundaries, digests
from trueup.rows.keys import Block, chain
from trueup.task.compare.model import Answer
from trueup.task.job import Job
from trueup.verbs.diff.compare import compare_unit
from trueup.verbs.diff.work import CompareUnit, HashBlock

# Sub-blocks found and hashed in one go: a few round trips a block, and statements of bounded length.
_SUB_BLOCKS = 32
# Units come from a sample: a few rows more than asked for are no reason to walk through them.
LENIENT = 2


def split(job: Job, task: HashBlock, counts: Mapping[str, int], room: Room) -> Iterator[Answer]:
    """Down to units of at most `compare_unit_size` rows on the fuller node; those that differ are compared."""
    if max(counts.values()) <= job.unit * LENIENT:
        yield from compare_unit(job, CompareUnit(task.block, task.nodes), room)
        return
    fuller = max(counts, key=lambda node: counts[node])
    rest: Block | None = task.block
    while rest is not None:
        if room.is_used_up:
            yield More((HashBlock(rest, task.nodes, counted=True),))
            return
        hop, rest = _hop(job, fuller, rest)
        yield from _compare_hop(job, task, hop, room)


def _hop(job: Job, fuller: str, rest: Block) -> tuple[list[Block], Block | None]:
    """The next sub-blocks of a walk, and where the walk goes on."""
    edges = job.read(
        (fuller,),
        lambda reader: boundaries(reader, job.spec, rest, step=job.unit, steps=_SUB_BLOCKS, timeout=job.timeout * 4),
    )[fuller]
    blocks = chain(edges, within=rest)
    if len(edges) < _SUB_BLOCKS:
        return blocks, None
    return blocks[:-1], blocks[-1]


def _compare_hop(job: Job, task: HashBlock, hop: list[Block], room: Room) -> Iterator[Answer]:
    found = job.read(task.nodes, lambda reader: digests(reader, job.spec, hop, timeout=job.timeout))
    for at, block in enumerate(hop):
        here = {node: sums[at] for node, sums in found.items()}
        if len(set(here.values())) == 1:
            continue
        smaller = HashBlock(block, task.nodes, counted=True)
        if block == task.block:
            # No cut makes it smaller: its rows share one key, which the comparison will say.
            yield from compare_unit(job, CompareUnit(block, task.nodes), room)
            continue
        if room.is_used_up:
            yield More((smaller,))
        else:
            yield from split(job, smaller, {node: sums.count for node, sums in here.items()}, room)
