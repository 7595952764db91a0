"""Compare a table without a key: its rows are a multiset, each identified by its hash.

Blocks are buckets of the hash. One scan per node, in parts, computes the digests of all buckets; a second one reads the
hashes and copies of the buckets that differ; a third one reads the rows that differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from psycopg import sql

from trueup.db.snapshot import Control
from trueup.engine.work import More, Room, Tasks
from trueup.rows.digest import EMPTY, Digest
from trueup.rows.keys import Block
from trueup.rows.pages import on_pages, page_count
from trueup.rows.spec import TableSpec
from trueup.task.compare.copies import CompareHashes, compare_hashes, copies_where, differing_hashes, hashed_rows
from trueup.task.compare.model import Found
from trueup.task.compare.state import Comparison
from trueup.task.job import Job
from trueup.task.steering import is_gentle
from trueup.verbs.diff.answers import ANALYSIS, add_up, answers, count_rows, keep, spend, until_full

_WHOLE = Block(None, None)
# Pages per part of a scan: 64 MB of table.
_PAGES_PER_PART = 8192
_PAGES_PER_GENTLE_PART = 1024
_MOST_BITS = 12
# Hashes per task: bounded memory in the workers, and few scans.
_HASHES_PER_TASK = 200_000


@dataclass(frozen=True)
class ScanPart:
    """Task: digest the buckets of one part of a node's table, pages `first` up to `end` (None: up to the last)."""

    node: str
    first: int
    end: int | None
    bits: int
    block: Block = _WHOLE


@dataclass(frozen=True)
class PartScanned:
    """Answer: the digests of one part by bucket."""

    node: str
    buckets: Mapping[int, Digest]


@dataclass(frozen=True)
class CompareBuckets:
    """Task: compare the rows of buckets that differ."""

    buckets: tuple[int, ...]
    bits: int
    nodes: tuple[str, ...]
    block: Block = _WHOLE


def compare_multisets(run: Comparison, rows: int) -> None:
    """Digest all buckets of the hash on all nodes, then compare the rows of those that differ."""
    job, state, progress, settings = run.job, run.state, run.progress, run.request.settings
    bits = bits_for(rows, job.unit)
    scans = list(scan_parts(run.controls, job.spec, bits, snapshot=settings.snapshot, gentle=is_gentle(settings)))
    progress.stage("hashing", len(scans))
    sums: dict[str, dict[int, Digest]] = {node: {} for node in state.nodes}
    parts: Tasks[Any] = Tasks(scans, state.gate, expected=len(scans))
    for answer in answers(run, partial(scan_part, job), parts):
        assert isinstance(answer, PartScanned)
        state.ran_on[parts.ran_on] += 1
        add_up(sums[answer.node], answer.buckets)
        scanned = sum(digest.count for digest in answer.buckets.values())
        progress.advance(rows=scanned)
        spend(state, scanned)
    if state.failures:
        return
    state.blocks = len({bucket for side in sums.values() for bucket in side})
    state.mismatched_blocks = len(differing_buckets(sums))
    count_rows(state, sums)
    if job.digests_only or not state.mismatched_blocks:
        return
    buckets = list(bucket_tasks(sums, bits, state.nodes))
    progress.stage(ANALYSIS, len(buckets))
    tasks: Tasks[Any] = Tasks(until_full(buckets, state), state.gate, expected=len(buckets))
    for answer in answers(run, partial(work, job), tasks):
        keep(answer, tasks, state)
        progress.advance(0)


def work(job: Job, task: CompareBuckets | CompareHashes, room: Room) -> Iterator[Found | More]:
    """Do a task of the comparison of buckets."""
    if isinstance(task, CompareBuckets):
        return compare_buckets(job, task, room)
    return compare_hashes(job, task, room)


def bits_for(rows: int, unit: int) -> int:
    """Return the number of hash bits with which a bucket has about `unit` rows."""
    return max(1, min(_MOST_BITS, math.ceil(math.log2(max(rows / unit, 1)))))


def scan_parts(
    controls: Sequence[Control], spec: TableSpec, bits: int, *, snapshot: bool, gentle: bool = False
) -> Iterator[ScanPart]:
    """Yield the parts of all nodes in turn. Without a snapshot rows move between pages, so a node is one part."""
    parts: dict[str, list[ScanPart]] = {}
    for control in controls:
        node = control.node.name
        pages = page_count(control.connection, spec) if snapshot else 0
        cuts = list(range(0, pages, _PAGES_PER_GENTLE_PART if gentle else _PAGES_PER_PART)) or [0]
        parts[node] = [ScanPart(node, first, end, bits) for first, end in zip(cuts, [*cuts[1:], None], strict=True)]
    for number in range(max(map(len, parts.values()))):
        yield from (of_node[number] for of_node in parts.values() if number < len(of_node))


def scan_part(job: Job, task: ScanPart, room: Room) -> Iterator[PartScanned]:
    """Count and add up the hashes of one part of one node, by bucket."""
    query = sql.SQL("SELECT trueup_hash >> {shift}, count(*), sum(trueup_hash)::text FROM {hashed} GROUP BY 1").format(
        shift=sql.Literal(64 - task.bits), hashed=hashed_rows(job.spec, *on_pages(task.first, task.end))
    )
    rows = job.read((task.node,), lambda reader: reader.rows(query))[task.node]
    yield PartScanned(task.node, {bucket: Digest(count, int(total)) for bucket, count, total in rows})


def differing_buckets(sums: Mapping[str, Mapping[int, Digest]]) -> list[int]:
    """Return the buckets whose digests differ."""
    buckets = sorted({bucket for side in sums.values() for bucket in side})
    return [bucket for bucket in buckets if len({side.get(bucket, EMPTY) for side in sums.values()}) > 1]


def bucket_tasks(
    sums: Mapping[str, Mapping[int, Digest]], bits: int, nodes: tuple[str, ...]
) -> Iterator[CompareBuckets]:
    """Yield tasks for the buckets that differ, each with a bounded number of rows."""
    batch: list[int] = []
    size = 0
    for bucket in differing_buckets(sums):
        rows = sum(side.get(bucket, EMPTY).count for side in sums.values())
        if batch and size + rows > _HASHES_PER_TASK:
            yield CompareBuckets(tuple(batch), bits, nodes)
            batch, size = [], 0
        batch.append(bucket)
        size += rows
    if batch:
        yield CompareBuckets(tuple(batch), bits, nodes)


def compare_buckets(job: Job, task: CompareBuckets, room: Room) -> Iterator[Found | More]:
    """Count the copies of the rows of some buckets, and read the rows whose copies differ."""
    in_buckets = sql.SQL("trueup_hash >> {} = ANY({})").format(
        sql.Literal(64 - task.bits), sql.Literal(list(task.buckets))
    )
    copies = job.read(task.nodes, lambda reader: copies_where(reader, job.spec, in_buckets))
    marks = sorted({mark for side in copies.values() for mark in side})
    yield from compare_hashes(job, differing_hashes(marks, copies), room)
