"""Compare encoded rows: those that all nodes have equally often are equal, others are aligned.

Rows are matched by their encoded keys. Values whose bytes differ are compared by `classes.is_equal`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from trueup.rows.align import Difference, Group, pack
from trueup.rows.canonical import decode_row, hash_row, shown, text_of
from trueup.rows.classes import is_equal
from trueup.rows.encode import Value
from trueup.rows.rules import Rule
from trueup.rows.spec import ValueClass

if TYPE_CHECKING:
    import pyarrow as pa

# Differences of one line of the result.
_PACKED = 200
# Rows of one key on a node up to which equal rows are looked for in every order.
_MOST_ALIGNED = 1000


class _NodeRow(NamedTuple):
    node: str
    row: bytes | None
    values: list[bytes | None]


@dataclass(frozen=True)
class CompareRows:
    """What a Python worker runs: it gets all rows of a key one after the other."""

    nodes: tuple[str, ...]
    kinds: tuple[ValueClass, ...]
    parsed: tuple[ValueClass | None, ...]
    rules: tuple[Rule, ...]
    key: int
    long_value: int

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches of differences: packed, their number, and their encoded keys."""
        found: list[Difference] = []
        keys: list[bytes] = []
        for key, lines in groupby(self._lines(batches), key=lambda line: line[0]):
            differences = list(self.differences([(row, counts) for _, row, counts in lines]))
            found += differences
            keys += [key] * bool(differences)
            if len(found) >= _PACKED:
                yield _batch(found, keys)
                found, keys = [], []
        if found:
            yield _batch(found, keys)

    def differences(self, lines: Sequence[tuple[bytes, Sequence[int]]]) -> Iterator[Difference]:
        """Yield the differences of the rows of one key: each distinct row, and how often each node has it."""
        if not self.key:
            yield from (self._copies(row, counts) for row, counts in lines)
            return
        if single := self._single(lines):
            yield from self._difference(single, 1)
            return
        rows: list[list[tuple[bytes, int]]] = [[] for _ in self.nodes]
        # In one order, so that a re-check aligns the rows of a key that is not unique in the same way.
        for row, counts in sorted(lines):
            common = min(counts)
            for node, count in enumerate(counts):
                if count > common:
                    rows[node].append((row, count - common))
        # With a unique key, every node has at most one row, once.
        if 1 < max(map(len, rows)) <= _MOST_ALIGNED:
            self._remove_equal(rows)
        while any(rows):
            copies = min(side[0][1] for side in rows if side)
            yield from self._difference([side[0][0] if side else None for side in rows], copies)
            for side in rows:
                if side and side[0][1] > copies:
                    side[0] = side[0][0], side[0][1] - copies
                elif side:
                    del side[0]

    def _single(self, lines: Sequence[tuple[bytes, Sequence[int]]]) -> list[bytes | None] | None:
        """Return the row of each node, if each has at most one, and not all the same; None otherwise."""
        rows: list[bytes | None] = [None] * len(self.nodes)
        for row, counts in lines:
            if 0 not in counts:
                return None
            for node, count in enumerate(counts):
                if count:
                    if count > 1 or rows[node] is not None:
                        return None
                    rows[node] = row
        return rows

    def _remove_equal(self, rows: list[list[tuple[bytes, int]]]) -> None:
        """Remove rows of a key that are equal on all nodes, in whatever order the nodes have them."""
        decoded = [[_decoded(node, row) for row, _ in side] for node, side in zip(self.nodes, rows, strict=True)]
        for own in decoded[0]:
            places = [
                next((at for at, other in enumerate(side) if rows[node][at][1] and self._is_same(own, other)), -1)
                for node, side in enumerate(decoded)
            ]
            if -1 not in places:
                copies = min(side[at][1] for side, at in zip(rows, places, strict=True))
                for side, at in zip(rows, places, strict=True):
                    side[at] = side[at][0], side[at][1] - copies
        for node, side in enumerate(rows):
            rows[node] = [line for line in side if line[1]]

    def _difference(self, rows: Sequence[bytes | None], copies: int) -> Iterator[Difference]:
        groups: list[list[_NodeRow]] = []
        for node, row in zip(self.nodes, rows, strict=True):
            own = _decoded(node, row)
            # Equal to all of a group: with a tolerance, two values may both be equal to a third one, and differ.
            same = next((group for group in groups if all(self._is_same(other, own) for other in group)), None)
            if same:
                same.append(own)
            else:
                groups.append([own])
        if len(groups) < 2:
            return
        some = next(group[0] for group in groups if group[0].row is not None)
        texts = self._shown(some.values)
        found = []
        for group in groups:
            own = group[0]
            nodes = tuple([other.node for other in group])
            if own.row is None:
                found.append(Group(nodes, None, None, copies))
            else:
                values = texts if own is some else self._shown(own.values, some.values, texts)
                found.append(Group(nodes, _signed(own.row), values, copies))
        yield Difference(self._key(some.values), self.nodes, tuple(found))

    def _copies(self, row: bytes, counts: Sequence[int]) -> Difference:
        """Return the difference of a row without a key: how often each node has it."""
        values = self._shown(decode_row(row)[1:])
        row_hash = _signed(row)
        groups = []
        for copies in dict.fromkeys(counts):
            nodes = tuple(node for node, count in zip(self.nodes, counts, strict=True) if count == copies)
            groups.append(Group(nodes, row_hash if copies else None, values if copies else None, copies))
        return Difference((str(row_hash),), self.nodes, tuple(groups))

    def _is_same(self, one: _NodeRow, other: _NodeRow) -> bool:
        if one.row is None or other.row is None:
            return one.row is other.row
        if one.row == other.row:
            return True
        return all(map(is_equal, self.kinds, self.parsed, one.values, other.values, self.rules))

    def _key(self, values: Sequence[bytes | None]) -> tuple[str, ...]:
        # A key has no NULL: see `base.check_null_keys`.
        return tuple(text_of(kind, value or b"") for kind, value in zip(self.kinds, values[: self.key], strict=False))

    def _shown(
        self,
        values: Sequence[bytes | None],
        known: Sequence[bytes | None] = (),
        texts: Sequence[Value] = (),
    ) -> tuple[Value, ...]:
        """Return values for a report; most are those of another row, whose texts are known."""
        if not known:
            return tuple([shown(kind, value, self.long_value) for kind, value in zip(self.kinds, values, strict=True)])
        return tuple(
            [
                text if value == other else shown(kind, value, self.long_value)
                for kind, value, other, text in zip(self.kinds, values, known, texts, strict=True)
            ]
        )

    def _lines(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[bytes, bytes, list[int]]]:
        for batch in batches:
            keys, rows, *counts = (column.to_pylist() for column in batch.columns)
            yield from ((bytes(key), bytes(row), count) for key, row, *count in zip(keys, rows, *counts, strict=True))


def _decoded(node: str, row: bytes | None) -> _NodeRow:
    # The first field is the seed.
    return _NodeRow(node, row, [] if row is None else decode_row(row)[1:])


def _batch(found: Sequence[Difference], keys: Sequence[bytes]) -> pa.RecordBatch:
    import pyarrow as pa

    columns = [
        pa.array([pack(found)], pa.binary()),
        pa.array([len(found)], pa.int32()),
        pa.array([list(keys)], pa.list_(pa.binary())),
    ]
    return pa.RecordBatch.from_arrays(columns, ["packed", "found", "keys"])


def _signed(row: bytes) -> int:
    high = hash_row(row)[0]
    return high - 2**64 if high >= 2**63 else high
