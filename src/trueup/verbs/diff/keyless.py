"""Compare a table without a key: its rows are a multiset, each identified by its hash.

Blocks are buckets of the hash. One scan per node, in parts, computes the digests of all buckets; a second one reads the
hashes and copies of the buckets that differ; a third one reads the rows that differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql

from trueup.db.snapshot import Control
from trueup.engine.work import More, Room
from trueup.rows.digest import EMPTY, Digest
from trueup.rows.keys import Block
from trueup.rows.pages import on_pages, page_count
from trueup.rows.spec import TableSpec
from trueup.task.compare.copies import compare_hashes, copies_where, differing_hashes, hashed_rows
from trueup.task.compare.model import Found
from trueup.task.job import Job

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
