"""Compare whole rows by key, on several nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from trueup.engine.work import More, Room
from trueup.errors import TrueupError
from trueup.rows.align import Difference, Pair, align, changed_columns, differing_keys, differing_pairs
from trueup.rows.fetch import Row, rows_by_key
from trueup.rows.keys import KeyValues
from trueup.task.compare.model import Answer, CompareKeys, Found, Known, by_key
from trueup.task.job import Job

# Whole rows are read in batches of about this size, whatever the width of a row.
_BATCH_BYTES = 1_000_000
_SMALLEST_BATCH = 16
_LARGEST_BATCH = 5000
_DEFECT = "this is a defect of trueup: report it with the types of the table's columns"

# Rows per batch, learned from the rows of the current run in this process.
_batches: dict[str, int] = {}


def known_in(nodes: Sequence[str], sides: Mapping[str, Mapping[KeyValues, Row]]) -> list[Known]:
    """Return the keys whose rows are not equal on all nodes."""
    rows = [sides[node] for node in nodes]
    return [(key, tuple(side[key].hash if key in side else None for side in rows)) for key in differing_keys(sides)]


def compare_keys(job: Job, task: CompareKeys, room: Room) -> Iterator[Answer]:
    """Read the rows of keys that differ, in batches; hand back the keys that do not fit into the room."""
    start, batch = 0, _batches.get(job.application, _SMALLEST_BATCH)
    while start < len(task.before):
        if room.is_used_up:
            yield More((CompareKeys(task.before[start:], task.nodes, task.block),))
            return
        known = task.before[start : start + batch]
        differences = differences_of(job, [key for key, _ in known], task.nodes)
        settled = settled_since(known, task.nodes, differences)
        if settled and all(job.snapshots.get(node) for node in task.nodes):
            # Within one snapshot nothing changes: the rows that were read are not the rows that were hashed.
            lost = sorted({key for key, _ in known} - {difference.key for difference in differences})
            key = ", ".join((lost or [known[0][0]])[0])
            raise TrueupError(f"key ({key}): the row hashes differ, but the rows are equal", cure=_DEFECT)
        size = sum(difference.size() for difference in differences)
        room.take(size)
        yield Found(tuple(differences), settled)
        start += len(known)
        if len(known) == batch:
            batch = max(_SMALLEST_BATCH, min(_LARGEST_BATCH, batch * 4, int(batch * _BATCH_BYTES / max(size, 1))))
            _batches.clear()
            _batches[job.application] = batch


def differences_of(job: Job, keys: Sequence[KeyValues], nodes: Sequence[str]) -> list[Difference]:
    """Return the differences among these keys, with whole rows."""
    sides = job.read(nodes, lambda reader: rows_by_key(reader, job.spec, keys, values=True, timeout=job.timeout * 4))
    return differences_in(job, keys, sides)


def differences_in(
    job: Job, keys: Sequence[KeyValues], sides: Mapping[str, Mapping[KeyValues, Row]]
) -> list[Difference]:
    """Return the differences among these keys in whole rows that were read."""
    differences = list(align(keys, sides))
    for difference in differences:
        _check_columns(job, difference)
    return differences


def settled_since(before: Sequence[Known], nodes: Sequence[str], after: Sequence[Difference]) -> Counter[Pair]:
    """Count per pair the differences that were seen before and no longer exist."""
    now = by_key(after)
    settled: Counter[Pair] = Counter()
    for key, hashes in before:
        if key in now and len(nodes) == 2:
            # The only pair still differs on this key.
            continue
        still = set(differing_pairs(now[key])) if key in now else set()
        for (one, one_hash), (other, other_hash) in combinations(zip(nodes, hashes, strict=True), 2):
            if one_hash != other_hash and (one, other) not in still:
                settled[one, other] += 1
    return settled


def _check_columns(job: Job, difference: Difference) -> None:
    """Raise if rows with different hashes have no column that differs."""
    rows = [group for group in difference.groups if group.hash is not None]
    for one, other in combinations(rows, 2):
        if not changed_columns(job.spec, one, other):
            key = ", ".join(difference.key)
            raise TrueupError(f"key ({key}): the row hashes differ, but no column differs", cure=_DEFECT)
