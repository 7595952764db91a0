"""A table without a key: its rows as a multiset, named by their own hash, with the number of copies.

No index can help here, so blocks are buckets of the hash: one scan of each node, in parts, gives the digests of all
buckets; a second reads hash and copies of the buckets that differ; a third fetches the rows that differ.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psycopg import sql

from trueup.db.reader import Reader
from trueup.db.snapshot import Control
from trueup.engine.work import More, Room
from trueup.rows.align import Difference, align_copies
from trueup.rows.digest import EMPTY, Digest
from trueup.rows.encode import Value, decode, row_hash, value_of
from trueup.rows.keys import Block, source, where
from trueup.rows.pages import on_pages, page_count
from trueup.rows.spec import TableSpec
from trueup.task.job import Job
from trueup.verbs.diff.work import Found

if TYPE_CHECKING:
    from psycopg import sql

_WHOLE = Block(None, None)
# Pages of one part of a scan: 64 MB of table.
_PAGES_A_PART = 8192
_PAGES_A_GENTLE_PART = 1024
_MOST_BITS = 12
# Hashes of one task: bounded memory in the workers, few scans.
_HASHES_A_TASK = 200_000


@dataclass(frozen=True)
class ScanPart:
    """Digest the buckets of one part of a node's table: pages from `first` up to `end` (None: to the last)."""

    node: str
    first: int
    end: int | None
    bits: int
    block: Block = _WHOLE


@dataclass(frozen=True)
class PartScanned:
    """The digests of one part by bucket."""

    node: str
    buckets: Mapping[int, Digest]


@dataclass(frozen=True)
class CompareBuckets:
    """Compare the rows of buckets that differ."""

    buckets: tuple[int, ...]
    bits: int
    nodes: tuple[str, ...]
    block: Block = _WHOLE


@dataclass(frozen=True)
class CompareHashes:
    """Fetch the rows of these hashes, known to differ; `copies` is what each node holds."""

    hashes: tuple[int, ...]
    copies: Mapping[str, Mapping[int, int]]
    block: Block = _WHOLE


def bits_for(rows: int, unit: int) -> int:
    """So many bits of the hash that a bucket holds about a unit of rows."""
    return max(1, min(_MOST_BITS, math.ceil(math.log2(max(rows / unit, 1)))))


def scan_parts(
    controls: Sequence[Control], spec: TableSpec, bits: int, *, snapshot: bool, gentle: bool = False
) -> Iterator[ScanPart]:
    """Parts of all nodes in turn. Without a snapshot rows move between pages: then a node is one part."""
    parts: dict[str, list[ScanPart]] = {}
    for control in controls:
        node = control.node.name
        pages = page_count(control.connection, spec) if snapshot else 0
        cuts = list(range(0, pages, _PAGES_A_GENTLE_PART if gentle else _PAGES_A_PART)) or [0]
        parts[node] = [ScanPart(node, first, end, bits) for first, end in zip(cuts, [*cuts[1:], None], strict=True)]
    for at in range(max(len(mine) for mine in parts.values())):
        yield from (mine[at] for mine in parts.values() if at < len(mine))


def scan_part(job: Job, task: ScanPart, room: Room) -> Iterator[PartScanned]:
    """One part of one node: count and sum of the hashes, by bucket."""
    query = sql.SQL("SELECT trueup_hash >> {shift}, count(*), sum(trueup_hash)::text FROM {hashed} GROUP BY 1").format(
        shift=sql.Literal(64 - task.bits), hashed=_hashed(job.spec, *on_pages(task.first, task.end))
    )
    rows = job.read((task.node,), lambda reader: reader.rows(query))[task.node]
    yield PartScanned(task.node, {bucket: Digest(count, int(total)) for bucket, count, total in rows})


def differing_buckets(sums: Mapping[str, Mapping[int, Digest]]) -> list[int]:
    """The buckets in which the nodes' digests disagree."""
    buckets = sorted({bucket for side in sums.values() for bucket in side})
    return [bucket for bucket in buckets if len({side.get(bucket, EMPTY) for side in sums.values()}) > 1]


def bucket_tasks(
    sums: Mapping[str, Mapping[int, Digest]], bits: int, nodes: tuple[str, ...]
) -> Iterator[CompareBuckets]:
    """The buckets that differ, as many at once as fit into a task."""
    some: list[int] = []
    size = 0
    for bucket in differing_buckets(sums):
        rows = sum(side.get(bucket, EMPTY).count for side in sums.values())
        if some and size + rows > _HASHES_A_TASK:
            yield CompareBuckets(tuple(some), bits, nodes)
            some, size = [], 0
        some.append(bucket)
        size += rows
    if some:
        yield CompareBuckets(tuple(some), bits, nodes)


def compare_buckets(job: Job, task: CompareBuckets, room: Room) -> Iterator[Found | More]:
    """Hashes and copies of some buckets; rows only of the hashes that differ."""
    in_buckets = sql.SQL("trueup_hash >> {} = ANY({})").format(
        sql.Literal(64 - task.bits), sql.Literal(list(task.buckets))
    )
    copies = job.read(task.nodes, lambda reader: copies_where(reader, job.spec, in_buckets))
    every = sorted({mark for side in copies.values() for mark in side})
    differing = tuple(mark for mark in every if len({side.get(mark, 0) for side in copies.values()}) > 1)
    yield from compare_hashes(job, CompareHashes(differing, copies), room)


def compare_hashes(job: Job, task: CompareHashes, room: Room, batch: int = 2000) -> Iterator[Found | More]:
    """The rows of hashes that differ, in batches, each from a node that holds it."""
    at = 0
    while at < len(task.hashes):
        if room.is_used_up:
            rest = task.hashes[at:]
            short = {node: {mark: side[mark] for mark in rest if mark in side} for node, side in task.copies.items()}
            yield More((CompareHashes(rest, short),))
            return
        some = task.hashes[at : at + batch]
        found = tuple(align_copies(task.copies, some, _rows_of(job, some, task.copies)))
        room.take(sum(difference.size() for difference in found))
        yield Found(found)
        at += len(some)


def copies_where(reader: Reader, spec: TableSpec, condition: sql.Composable) -> dict[int, int]:
    """How many copies of each row a node holds, by hash."""
    query = sql.SQL("SELECT trueup_hash, count(*) FROM {} WHERE {} GROUP BY 1").format(_hashed(spec), condition)
    return dict(reader.rows(query))


def with_hash(hashes: Sequence[int]) -> sql.Composable:
    """The condition that a row has one of these hashes."""
    return sql.SQL("trueup_hash = ANY({})").format(sql.Literal(list(hashes)))


def _rows_of(job: Job, hashes: Sequence[int], copies: Mapping[str, Mapping[int, int]]) -> dict[int, tuple[Value, ...]]:
    """One row for each hash; equal hashes mean equal rows, so the first node that holds it will do."""
    wanted: dict[str, list[int]] = defaultdict(list)
    for mark in hashes:
        wanted[next(node for node, side in copies.items() if mark in side)].append(mark)
    values = sql.SQL(", ").join(value_of(column, job.spec) for column in job.spec.columns)
    names = sql.SQL(", ").join(sql.Identifier(name) for name in job.spec.column_names)
    found: dict[int, tuple[Value, ...]] = {}
    for node, marks in wanted.items():
        query = sql.SQL(
            "SELECT DISTINCT ON (trueup_hash) trueup_hash, {values} FROM {hashed} WHERE {condition}"
        ).format(values=values, hashed=_hashed(job.spec, names=names), condition=with_hash(marks))
        for mark, *row in job.read((node,), lambda reader, query=query: reader.rows(query))[node]:  # type: ignore[misc]
            found[mark] = tuple(decode(column, value) for column, value in zip(job.spec.columns, row, strict=True))
    return found


def _hashed(spec: TableSpec, *conditions: sql.Composable, names: sql.Composable | None = None) -> sql.Composed:
    """The rows with their hash; OFFSET 0 keeps the planner from computing the hash once for each mention."""
    more = sql.SQL(", {}").format(names) if names is not None else sql.SQL("")
    return sql.SQL("(SELECT {hash} AS trueup_hash{more} FROM {source}{where} OFFSET 0) trueup_rows").format(
        hash=row_hash(spec), more=more, source=source(spec), where=where(spec, *conditions)
    )


def refill(known: Difference, now: Difference) -> Difference:
    """The rows' values for a difference that was counted again: its hash is the same, so its row is."""
    values = next((group.values for group in known.groups if group.values is not None), None)
    groups = tuple(group._replace(values=values if group.hash is not None else None) for group in now.groups)
    return now._replace(groups=groups)
