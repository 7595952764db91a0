"""Counts the files of an unfinished run that are already in the target, from a sample of their keys.

An INSERT is atomic and files are inserted one after the other, so the result is one number N: the first N files are in
the target, the others are not. The probe is the sum of signs of a (key, version), which background merges do not
change: a merge removes pairs that add up to zero. For versions of the slow supplier (S > 0) this sum is known for every
possible N:

- each version gets its +1 once in the life of the table and its -1 at most once, so before the run the sum was 1 for
  versions that the run cancels, and 0 for all others;
- runs are sequential, and no other program writes such versions, so no later run can have cancelled the rows of this
  one: every change comes from the first N files.

Each (key, version) excludes some values of N. If all are excluded, another program changed the table. If several
remain, as for files that contain only tombstones of keys which the slow supplier never processed, the rows of the fast
supplier decide, if they exist.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trueup.db.clickhouse import identifier, literal, names
from trueup.errors import StoreError
from trueup.verbs.difflog.clickhouse import ClickHouse
from trueup.verbs.difflog.model import SIGN, SLOW, VERSION

SAMPLE = 200
_KEYS_PER_QUERY = 200

# A key as text that ClickHouse can parse.
Key = tuple["str | bytes", ...]


@dataclass
class _Probe:
    """The signs of one (key, version), or of all fast versions of a key: per file of the run, and in the target."""

    by_file: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    plus: int = 0
    found: int = 0
    found_plus: int = 0

    def add(self, file: int, sign: int) -> None:
        self.by_file[file] += sign
        self.plus += sign > 0

    def possible(self, count: int, before: Iterable[int]) -> set[int]:
        """Return the numbers of inserted files that explain the sum in the target, for any sum `before` the run."""
        numbers, written = set(), 0
        for inserted in range(count + 1):
            if self.found - written in before:
                numbers.add(inserted)
            written += self.by_file.get(inserted, 0)
        return numbers

    @property
    def total(self) -> int:
        return sum(self.by_file.values())


def count_inserted(house: ClickHouse, files: Sequence[Path], key: Sequence[str]) -> int:
    """Return how many of these files, counted from the first, are in the target. Raises StoreError if it is unknown."""
    _check_no_insert_is_running(house)
    slow, fast = _read_probes(files, key)
    _query(house, key, slow, fast)
    count = len(files)
    numbers = set(range(count + 1))
    for probe in slow.values():
        numbers &= probe.possible(count, [1 if probe.total < 0 else 0])
    if len(numbers) > 1:
        for probe in fast.values():
            numbers &= _by_fast_rows(probe, count)
    if len(numbers) == 1:
        return numbers.pop()
    if not numbers:
        raise StoreError(
            f"table {house.database}.{house.table} contains rows of this run, but not those of complete files:"
            " another program changed the table, or the files are not those of the first attempt",
            cure="list keys that do not collapse with `trueup difflog prove`; restore the table, or start a new one",
        )
    first, last = files[min(numbers)].name, files[max(numbers) - 1].name
    raise StoreError(
        f"cannot determine whether {first}{'' if first == last else f' to {last}'} was inserted into"
        f" {house.database}.{house.table} before the run was killed: the file has only compensations of keys without"
        " rows of the fast supplier",
        cure="if rows of the fast supplier are missing, insert them and run again; if they existed, the file is"
        " inserted and its rows were merged: record `clickhouse` as complete in the manifest of the run",
    )


def count_standing(
    house: ClickHouse, files: Sequence[Path], key: Sequence[str], later: Sequence[Path] = ()
) -> tuple[int, int]:
    """Return how many of the versions that a finished run left standing are in the target, and how many are expected.

    Counts a sample; 0 of 0 if the run left none. Keys in the `later` files, which may be inserted, do not count.
    """
    slow, _ = _read_probes(files, key)
    _, first_keys = _sample_of(files, key)
    later_rows = (table for path in later if first_keys is not None for table in _rows_of(path, key, first_keys))
    changed = {values for table in later_rows for values in _keys(table, key)}
    kept = {place: probe for place, probe in slow.items() if probe.total == 1 and place[0] not in changed}
    _query(house, key, kept, {})
    return sum(probe.found == 1 for probe in kept.values()), len(kept)


def _by_fast_rows(probe: _Probe, count: int) -> set[int]:
    """Return the possible numbers by the fast versions of a key: the rows of the fast supplier add up to 1, if any."""
    if probe.total != -1:
        return set(range(count + 1))
    # Besides the fast supplier, only block 4 of a run writes +1 here: more than that proves that the supplier wrote.
    return probe.possible(count, [1] if probe.found_plus > probe.plus else [0, 1])


def _check_no_insert_is_running(house: ClickHouse) -> None:
    """Raise StoreError while an insert of a killed client is still running on the server: its result is unknown."""
    prefix = literal(house.insert_mark)
    if house.rows(f"SELECT 1 FROM system.processes WHERE startsWith(query_id, {prefix})"):
        raise StoreError(
            f"an insert of an earlier attempt is still running on {house.place}",
            cure="wait until it ends, then run again",
        )


def _read_probes(files: Sequence[Path], key: Sequence[str]) -> tuple[dict[tuple[Key, int], _Probe], dict[Key, _Probe]]:
    """Return the signs of the run for a sample of keys: by (key, version) for slow, by key for fast versions."""
    sampled, first_keys = _sample_of(files, key)
    if first_keys is None:
        return {}, {}
    slow: dict[tuple[Key, int], _Probe] = defaultdict(_Probe)
    fast: dict[Key, _Probe] = defaultdict(_Probe)
    for number, path in enumerate(files):
        for table in _rows_of(path, key, first_keys):
            lists = [table.column(name).to_pylist() for name in (SIGN, SLOW, VERSION)]
            for values, sign, slow_version, version in zip(_keys(table, key), *lists, strict=True):
                if values in sampled:
                    probe = slow[values, version] if slow_version > 0 else fast[values]
                    probe.add(number, sign)
    return slow, fast


def _sample_of(files: Sequence[Path], key: Sequence[str]) -> tuple[set[Key], Any]:
    """Return the sampled keys of these files, and the values of their first column; None if there are none."""
    sampled: set[Key] = set()
    firsts: list[Any] = []
    for path in files:
        for table in _sample(path, key):
            sampled.update(_keys(table, key))
            firsts.append(table.column(key[0]).combine_chunks())
    return sampled, pa.chunked_array(firsts).unique() if firsts else None


def _sample(path: Path, key: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the first rows of a file with slow versions, and the first compensations."""
    left = {"slow": SAMPLE, "fast": SAMPLE}
    for batch in _batches(path, [*key, SIGN, SLOW]):
        is_slow = pc.greater(batch.column(SLOW), 0)
        is_compensation = pc.and_(pc.invert(is_slow), pc.less(batch.column(SIGN), 0))
        for kind, chosen in (("slow", is_slow), ("fast", is_compensation)):
            rows = pa.Table.from_batches([batch]).filter(chosen).slice(0, left[kind])
            left[kind] -= rows.num_rows
            if rows.num_rows:
                yield rows
        if not any(left.values()):
            return


def _rows_of(path: Path, key: Sequence[str], first_keys: Any) -> Iterator[pa.Table]:
    for batch in _batches(path, [*key, SIGN, SLOW, VERSION]):
        rows = batch.filter(pc.is_in(batch.column(key[0]), value_set=first_keys))
        if rows.num_rows:
            yield pa.Table.from_batches([rows])


def _batches(path: Path, columns: Sequence[str]) -> Iterator[Any]:
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=list(columns)):
            yield batch.select(list(columns))


def _keys(table: pa.Table, key: Sequence[str]) -> list[Key]:
    return list(zip(*[_texts(table.column(name)) for name in key], strict=True))


def _texts(column: Any) -> list[str | bytes]:
    """Return values as text that ClickHouse parses to the same value."""
    if pa.types.is_timestamp(column.type):
        # ClickHouse stores microseconds in UTC, like Spark.
        column = (
            column.cast(pa.timestamp("us", tz=column.type.tz), safe=False).cast(pa.timestamp("us")).cast(pa.string())
        )
    values = column.to_pylist()
    if pa.types.is_decimal(column.type):
        return [format(value, "f") for value in values]
    if pa.types.is_boolean(column.type):
        return ["true" if value else "false" for value in values]
    return [value if isinstance(value, bytes) else str(value) for value in values]


def _query(house: ClickHouse, key: Sequence[str], slow: dict[tuple[Key, int], _Probe], fast: dict[Key, _Probe]) -> None:
    """Add the signs in the target to every probe."""
    kinds = house.columns()
    several = len(key) > 1
    kind = f"Tuple({', '.join(kinds[name] for name in key)})" if several else kinds[key[0]]
    value = f"({names(key)})" if several else identifier(key[0])
    keys = sorted({values for values, _ in slow} | set(fast), key=repr)
    for start in range(0, len(keys), _KEYS_PER_QUERY):
        batch = keys[start : start + _KEYS_PER_QUERY]
        texts = ", ".join(f"({', '.join(map(literal, one))})" if several else literal(one[0]) for one in batch)
        sql = (
            f"WITH CAST([{texts}], {literal(f'Array({kind})')}) AS probes"
            f" SELECT indexOf(probes, {value}) AS position, {SLOW} > 0 AS slow, {VERSION}, toInt64(sum({SIGN})),"
            f" countIf({SIGN} > 0)"
            f" FROM {house.name} WHERE {value} IN probes GROUP BY position, slow, {VERSION}"
        )
        for position, is_slow, version, net, plus in house.rows(sql):
            values = batch[position - 1]
            probe = slow.get((values, version)) if is_slow else fast.get(values)
            if probe:
                probe.found += net
                probe.found_plus += plus
