"""The last step down: which rows of a unit differ (by key and row hash), and how (whole rows, by key)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

from trueup.diff.work import Answer, CompareKeys, CompareUnit, Found, Job, More, by_key, settled_pairs
from trueup.engine.work import Room
from trueup.errors import TrueupError
from trueup.rows.align import Difference, Pair, align, changed_columns, differing_keys
from trueup.rows.fetch import hashes_in_block, rows_by_key
from trueup.rows.keys import KeyValues

# Whole rows are fetched in batches that aim at this many bytes, whatever the width of a row.
_BATCH_BYTES = 1_000_000
_SMALLEST_BATCH = 16
_LARGEST_BATCH = 1000


def compare_unit(job: Job, task: CompareUnit, room: Room) -> Iterator[Answer]:
    """Keys and hashes of a unit from all nodes; whole rows only for the keys that differ."""
    if room.is_used_up:
        yield More((task,))
        return
    sides = job.read(task.nodes, lambda reader: hashes_in_block(reader, job.spec, task.block, timeout=job.timeout * 4))
    before = tuple(align(differing_keys(sides), sides))
    yield from compare_keys(job, CompareKeys(before, task.nodes, task.block), room)


def compare_keys(job: Job, task: CompareKeys, room: Room) -> Iterator[Answer]:
    """Whole rows of keys that differ, batch by batch; what does not fit the room is handed back."""
    at, batch = 0, _SMALLEST_BATCH
    while at < len(task.before):
        if room.is_used_up:
            yield More((CompareKeys(task.before[at:], task.nodes, task.block),))
            return
        some = task.before[at : at + batch]
        found = differences_of(job, [known.key for known in some], task.nodes)
        size = sum(difference.size() for difference in found)
        room.take(size)
        yield Found(tuple(found), gone(some, found))
        at += len(some)
        batch = max(_SMALLEST_BATCH, min(_LARGEST_BATCH, batch * 4, int(batch * _BATCH_BYTES / max(size, 1))))


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


def gone(before: Sequence[Difference], after: Sequence[Difference]) -> Counter[Pair]:
    """How many differences of each pair were seen before and are not there now."""
    now = by_key(after)
    return Counter(pair for known in before for pair in settled_pairs(known, now.get(known.key)))


def _verify(job: Job, difference: Difference) -> None:
    """Rows whose hashes differ must differ in a column: otherwise hash and values do not speak of the same thing."""
    rows = [group for group in difference.groups if group.hash is not None]
    for one, other in combinations(rows, 2):
        if not changed_columns(job.spec, one, other):
            raise TrueupError(
                f"key ({', '.join(difference.key)}): the row hashes differ but no column does",
                cure="this is a defect of trueup: please report it with the types of the table's columns",
            )
