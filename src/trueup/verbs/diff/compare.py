"""The last step down: which rows of a unit differ (by mark and row hash), and how (whole rows, by key)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from trueup.engine.work import More, Room
from trueup.errors import TrueupError
from trueup.rows.align import Difference, Pair, align, changed_columns, differing_keys, differing_pairs
from trueup.rows.fetch import Row, hashes_in_block, rows_by_key
from trueup.rows.keys import Block, KeyValues
from trueup.rows.marks import Marks, differing_marks, hashes_of, is_whole_number, marks_in_blocks, rows_with
from trueup.task.job import Job
from trueup.verbs.diff.work import Answer, CompareKeys, CompareUnit, Found, Known, by_key

# Whole rows are fetched in batches that aim at this many bytes, whatever the width of a row.
_BATCH_BYTES = 1_000_000
_SMALLEST_BATCH = 16
_LARGEST_BATCH = 5000


# What the rows of the run at hand taught this process: how many of them are a good batch.
_batches: dict[str, int] = {}


def compare_unit(job: Job, task: CompareUnit, room: Room) -> Iterator[Answer]:
    """Marks and hashes of a unit from all nodes; whole rows only for the keys that differ."""
    if room.is_used_up:
        yield More((task,))
        return
    before = differing_in(job, [task.block], task.nodes, marks_of(job, [task.block], task.nodes))
    yield from compare_keys(job, CompareKeys(before, task.nodes, task.block), room)


def marks_of(job: Job, blocks: Sequence[Block], nodes: Sequence[str]) -> dict[str, list[Marks]]:
    """The marks of these blocks on these nodes."""
    return job.read(nodes, lambda reader: marks_in_blocks(reader, job.spec, blocks, timeout=job.timeout * 4))


def differing_in(
    job: Job, blocks: Sequence[Block], nodes: Sequence[str], marks: Mapping[str, Sequence[Marks]]
) -> tuple[Known, ...]:
    """The keys of these blocks whose marks differ, with their hashes on the nodes, in the order of `nodes`."""
    found: list[Known] = []
    for at, block in enumerate(blocks):
        found += _differing(job, block, nodes, [marks[node][at] for node in nodes])
    return tuple(found)


def _differing(job: Job, block: Block, nodes: Sequence[str], sides: Sequence[Marks]) -> list[Known]:
    timeout = job.timeout * 4
    if any(side.has_twins for side in sides):
        # Marks do not tell its rows apart: the keys themselves do, or say that they are none.
        return known_in(
            nodes, job.read(nodes, lambda reader: hashes_in_block(reader, job.spec, block, timeout=timeout))
        )
    marks = differing_marks(sides)
    wanted = marks.tolist()
    if is_whole_number(job.spec):
        keys = [(str(key),) for key in wanted]
        return list(zip(keys, zip(*(hashes_of(side, marks) for side in sides), strict=True), strict=True))
    if not wanted:
        return []
    return known_in(nodes, job.read(nodes, lambda reader: rows_with(reader, job.spec, block, wanted, timeout=timeout)))


def known_in(nodes: Sequence[str], sides: Mapping[str, Mapping[KeyValues, Row]]) -> list[Known]:
    """The keys whose rows are not the same on all sides."""
    rows = [sides[node] for node in nodes]
    return [(key, tuple(side[key].hash if key in side else None for side in rows)) for key in differing_keys(sides)]


def compare_keys(job: Job, task: CompareKeys, room: Room) -> Iterator[Answer]:
    """Whole rows of keys that differ, batch by batch; what does not fit the room is handed back."""
    at, batch = 0, _batches.get(job.application, _SMALLEST_BATCH)
    while at < len(task.before):
        if room.is_used_up:
            yield More((CompareKeys(task.before[at:], task.nodes, task.block),))
            return
        some = task.before[at : at + batch]
        found = differences_of(job, [key for key, _ in some], task.nodes)
        settled = gone(some, task.nodes, found)
        if settled and all(job.snapshots.get(node) for node in task.nodes):
            # Within one snapshot nothing changes: whoever reads the rows has not read what was hashed.
            lost = sorted({key for key, _ in some} - {each.key for each in found})
            raise TrueupError(
                f"key ({', '.join((lost or [some[0][0]])[0])}): its hashes differ, its rows do not",
                cure="this is a defect of trueup: please report it with the types of the table's columns",
            )
        size = sum(difference.size() for difference in found)
        room.take(size)
        yield Found(tuple(found), settled)
        at += len(some)
        if len(some) == batch:
            batch = max(_SMALLEST_BATCH, min(_LARGEST_BATCH, batch * 4, int(batch * _BATCH_BYTES / max(size, 1))))
            _batches.clear()
            _batches[job.application] = batch


def differences_of(
    job: Job, keys: Sequence[KeyValues], nodes: Sequence[str], *, fresh: bool = False
) -> list[Difference]:
    """The differences among these keys, with whole rows."""
    sides = job.read(
        nodes,
        lambda reader: rows_by_key(reader, job.spec, keys, values=True, timeout=job.timeout * 4),
        fresh=fresh,
    )
    found = list(align(keys, sides))
    for difference in found:
        _verify(job, difference)
    return found


def gone(before: Sequence[Known], nodes: Sequence[str], after: Sequence[Difference]) -> Counter[Pair]:
    """How many differences of each pair were seen before and are not there now."""
    now = by_key(after)
    settled: Counter[Pair] = Counter()
    for key, hashes in before:
        if key in now and len(nodes) == 2:
            # Of two nodes that still differ on a key, nothing is settled.
            continue
        still = set(differing_pairs(now[key])) if key in now else set()
        for (one, mine), (other, theirs) in combinations(zip(nodes, hashes, strict=True), 2):
            if mine != theirs and (one, other) not in still:
                settled[one, other] += 1
    return settled


def _verify(job: Job, difference: Difference) -> None:
    """Rows whose hashes differ must differ in a column: otherwise hash and values do not speak of the same thing."""
    rows = [group for group in difference.groups if group.hash is not None]
    for one, other in combinations(rows, 2):
        if not changed_columns(job.spec, one, other):
            raise TrueupError(
                f"key ({', '.join(difference.key)}): the row hashes differ but no column does",
                cure="this is a defect of trueup: please report it with the types of the table's columns",
            )
