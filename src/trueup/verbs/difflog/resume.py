"""How many files of an unfinished run are in the target already: told by the rows of a sample of their keys.

An INSERT is atomic and the files go in one after the other, so the answer is one number: the first so many are in, the
others are not. What is asked of the target is the sum of signs of a (key, version), which no background merge can
change: a merge takes away pairs that add up to nothing. For versions of the slow supplier (S > 0) that sum is known for
every possible answer:

- each of them gets its +1 once in the life of the table and its -1 at most once, so before the run the sum was 1 for
  those the run cancels in the end, and 0 for all others;
- runs follow one another, and nobody else writes such versions, so no later run can have cancelled what this one wrote:
  what changed since is what the first files of this run brought.

Each (key, version) so leaves some answers possible; only what all of them leave can be true. If none is left, then the
table was changed by somebody else. If several are left, as with files that hold nothing but tombstones of keys which
the slow supplier never saw, the rows of the fast supplier decide, where they are there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueup.db.clickhouse import identifier, literal, names
from trueup.errors import StoreError
from trueup.verbs.difflog.clickhouse import ClickHouse
from trueup.verbs.difflog.model import SIGN, SLOW, VERSION

if TYPE_CHECKING:
    import pyarrow as pa

SAMPLE = 200
_KEYS_A_QUERY = 200

# A key as ClickHouse reads it from text.
Key = tuple["str | bytes", ...]


@dataclass
class _Probe:
    """What a run does to one (key, version), or to all fast versions of a key, file by file; and what stands there."""

    by_file: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    plus: int = 0
    found: int = 0
    found_plus: int = 0

    def add(self, file: int, sign: int) -> None:
        self.by_file[file] += sign
        self.plus += sign > 0

    def possible(self, count: int, before: Iterable[int]) -> set[int]:
        """The numbers of inserted files with which the sum is what was found, for any of the sums before the run."""
        answers, sums = set(), 0
        for done in range(count + 1):
            if self.found - sums in before:
                answers.add(done)
            sums += self.by_file.get(done, 0)
        return answers

    @property
    def total(self) -> int:
        return sum(self.by_file.values())


def count_inserted(house: ClickHouse, files: Sequence[Path], key: Sequence[str]) -> int:
    """How many of these files, from the first on, are in the target."""
    _refuse_while_inserting(house)
    slow, fast = _read_probes(files, key)
    _ask(house, key, slow, fast)
    count = len(files)
    answers = set(range(count + 1))
    for probe in slow.values():
        answers &= probe.possible(count, [1 if probe.total < 0 else 0])
    if len(answers) > 1:
        for probe in fast.values():
            answers &= _by_fast_rows(probe, count)
    if len(answers) == 1:
        return answers.pop()
    if not answers:
        raise StoreError(
            f"the rows of this run are in {house.database}.{house.table} only in part, and not file by file:"
            " it was written to by somebody else, or the files are not those of the first try",
            cure="`trueup difflog prove` lists the keys that do not collapse; restore the table, or begin a new one",
        )
    first, last = files[min(answers)].name, files[max(answers) - 1].name
    raise StoreError(
        f"nothing in {house.database}.{house.table} tells whether {first}{'' if first == last else f' to {last}'} was"
        " inserted before the kill: it has only compensations, of keys of which no row of the fast supplier is there",
        cure="if the fast supplier's rows are still to come, run again then; if they were there, the"
        " file is in and all has been merged away: note `clickhouse` as done in the run's manifest",
    )


def _by_fast_rows(probe: _Probe, count: int) -> set[int]:
    """What the fast versions of a key tell: the fast supplier's own rows of a key always add up to 1, once there."""
    if probe.total != -1:
        return set(range(count + 1))
    # Only a run's block 4 writes +1 here beside the fast supplier: what is more than that proves that it has written.
    return probe.possible(count, [1] if probe.found_plus > probe.plus else [0, 1])


def _refuse_while_inserting(house: ClickHouse) -> None:
    """A server goes on with an insert whose client was killed: till it ends nobody can say whether it is in."""
    mark = literal(house.insert_mark)
    if house.rows(f"SELECT 1 FROM system.processes WHERE startsWith(query_id, {mark})"):
        raise StoreError(
            f"an insert of an earlier try is still running on {house.place}",
            cure="wait until it has ended, then run again",
        )


def _read_probes(files: Sequence[Path], key: Sequence[str]) -> tuple[dict[tuple[Key, int], _Probe], dict[Key, _Probe]]:
    """What the whole run does to the sampled keys: by (key, version) for slow versions, by key for the fast ones."""
    import pyarrow as pa

    sampled: set[Key] = set()
    firsts: list[Any] = []
    for path in files:
        for table in _sample(path, key):
            sampled.update(_keys(table, key))
            firsts.append(table.column(key[0]).combine_chunks())
    if not firsts:
        return {}, {}
    wanted = pa.chunked_array(firsts).unique()
    slow: dict[tuple[Key, int], _Probe] = defaultdict(_Probe)
    fast: dict[Key, _Probe] = defaultdict(_Probe)
    for number, path in enumerate(files):
        for table in _rows_of(path, key, wanted):
            lists = [table.column(name).to_pylist() for name in (SIGN, SLOW, VERSION)]
            for each, sign, slow_version, version in zip(_keys(table, key), *lists, strict=True):
                if each in sampled:
                    probe = slow[each, version] if slow_version > 0 else fast[each]
                    probe.add(number, sign)
    return slow, fast


def _sample(path: Path, key: Sequence[str]) -> Iterator[pa.Table]:
    """The first rows with slow versions of a file, and the first that only take away."""
    import pyarrow as pa
    import pyarrow.compute as pc

    left = {"slow": SAMPLE, "fast": SAMPLE}
    for batch in _batches(path, [*key, SIGN, SLOW]):
        is_slow = pc.greater(batch.column(SLOW), 0)
        only_takes = pc.and_(pc.invert(is_slow), pc.less(batch.column(SIGN), 0))
        for kind, chosen in (("slow", is_slow), ("fast", only_takes)):
            found = pa.Table.from_batches([batch]).filter(chosen).slice(0, left[kind])
            left[kind] -= found.num_rows
            if found.num_rows:
                yield found
        if not any(left.values()):
            return


def _rows_of(path: Path, key: Sequence[str], wanted: Any) -> Iterator[pa.Table]:
    import pyarrow as pa
    import pyarrow.compute as pc

    for batch in _batches(path, [*key, SIGN, SLOW, VERSION]):
        found = batch.filter(pc.is_in(batch.column(key[0]), value_set=wanted))
        if found.num_rows:
            yield pa.Table.from_batches([found])


def _batches(path: Path, columns: Sequence[str]) -> Iterator[Any]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=list(columns)):
            yield batch.select(list(columns))


def _keys(table: pa.Table, key: Sequence[str]) -> list[Key]:
    return list(zip(*[_texts(table.column(name)) for name in key], strict=True))


def _texts(column: Any) -> list[str | bytes]:
    """Values as texts from which ClickHouse reads the same value."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        # ClickHouse keeps microseconds in UTC, as Spark does.
        column = (
            column.cast(pa.timestamp("us", tz=column.type.tz), safe=False).cast(pa.timestamp("us")).cast(pa.string())
        )
    values = column.to_pylist()
    if pa.types.is_decimal(column.type):
        return [format(value, "f") for value in values]
    if pa.types.is_boolean(column.type):
        return ["true" if value else "false" for value in values]
    return [value if isinstance(value, bytes) else str(value) for value in values]


def _ask(house: ClickHouse, key: Sequence[str], slow: dict[tuple[Key, int], _Probe], fast: dict[Key, _Probe]) -> None:
    """Fill in what stands in the target for every probe."""
    kinds = house.columns()
    several = len(key) > 1
    kind = f"Tuple({', '.join(kinds[name] for name in key)})" if several else kinds[key[0]]
    value = f"({names(key)})" if several else identifier(key[0])
    keys = sorted({each for each, _ in slow} | set(fast), key=repr)
    for start in range(0, len(keys), _KEYS_A_QUERY):
        some = keys[start : start + _KEYS_A_QUERY]
        texts = ", ".join(f"({', '.join(map(literal, each))})" if several else literal(each[0]) for each in some)
        sql = (
            f"WITH CAST([{texts}], {literal(f'Array({kind})')}) AS probes"
            f" SELECT indexOf(probes, {value}) AS at, {SLOW} > 0 AS slow, {VERSION}, toInt64(sum({SIGN})),"
            f" countIf({SIGN} > 0)"
            f" FROM {house.name} WHERE {value} IN probes GROUP BY at, slow, {VERSION}"
        )
        for at, is_slow, version, net, plus in house.rows(sql):
            probe = slow.get((some[at - 1], version)) if is_slow else fast.get(some[at - 1])
            if probe:
                probe.found += net
                probe.found_plus += plus
