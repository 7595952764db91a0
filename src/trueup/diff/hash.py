"""One block on every node: hash it, and where the digests disagree carry it down to the rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from trueup.diff.compare import compare_keys, compare_unit
from trueup.diff.split import split
from trueup.diff.work import Answer, CompareUnit, HashBlock, Hashed, Job, Task
from trueup.engine.work import Room
from trueup.errors import TrueupError
from trueup.rows.digest import digest


def work(job: Job, task: Task, room: Room) -> Iterator[Answer]:
    """What a worker does with any task of a diff; errors leave with table and block on them."""
    try:
        if isinstance(task, HashBlock):
            yield from hash_block(job, task, room)
        elif isinstance(task, CompareUnit):
            yield from compare_unit(job, task, room)
        else:
            yield from compare_keys(job, task, room)
    except TrueupError as error:
        error.block = error.block or str(task.block)
        raise


def hash_block(job: Job, task: HashBlock, room: Room) -> Iterator[Answer]:
    """Digests of a block from all its nodes; equal ones are proof enough."""
    digests = job.read(task.nodes, lambda reader: digest(reader, job.spec, task.block, timeout=job.timeout))
    counts = {node: found.count for node, found in digests.items()}
    mismatched = len(set(digests.values())) > 1
    if not task.counted:
        yield Hashed(task.block, counts, mismatched)
    if mismatched and not job.digests_only:
        yield from split(job, replace(task, counted=True), counts, room)
