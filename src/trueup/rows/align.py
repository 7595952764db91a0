"""Compare the rows of two or more nodes key by key: which nodes agree, and what differs.

Rows are matched by their encoded key in a map, not by sorted order, so the result does not depend on collations.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Literal, NamedTuple

from trueup.rows.classes import same_text
from trueup.rows.encode import Value, same
from trueup.rows.fetch import Row
from trueup.rows.keys import KeyValues
from trueup.rows.rules import NO_RULE
from trueup.rows.spec import ColumnSpec, TableSpec

Kind = Literal["missing", "extra", "changed"]
Pair = tuple[str, str]


# Tuples, because a run creates a million of these: frozen dataclasses take several times as long to create and pickle.
class Group(NamedTuple):
    """Nodes with the same row for a key, or with none (`hash` is None). `copies`: how often a keyless row exists."""

    nodes: tuple[str, ...]
    hash: int | None
    values: tuple[Value, ...] | None = None
    copies: int = 1


class Difference(NamedTuple):
    """One key on which nodes disagree."""

    key: KeyValues
    nodes: tuple[str, ...]  # all nodes that were read, in the order of the run
    groups: tuple[Group, ...]
    moved: tuple[str, ...] = ()  # nodes whose row changed between the last two looks

    def is_hot(self, pair: Pair) -> bool:
        """Return whether the row changed between the last two looks on a node of the pair: not confirmed."""
        return bool(self.moved) and (pair[0] in self.moved or pair[1] in self.moved)

    def since(self, earlier: Difference) -> Difference:
        """Return this difference with the nodes whose row is not as in an earlier look."""
        if self is earlier:
            return self._replace(moved=()) if self.moved else self
        return self._replace(moved=tuple([node for node in self.nodes if self._row(node) != earlier._row(node)]))

    def _row(self, node: str) -> tuple[int | None, int] | None:
        group = self.group_of(node)
        return group and (group.hash, group.copies)

    def group_of(self, node: str) -> Group | None:
        """Return the group of a node, or None if the node was not read."""
        for group in self.groups:
            if node in group.nodes:
                return group
        return None

    def size(self) -> int:
        """Return the approximate size in bytes, to limit the size of results."""
        size = 200 + sum(map(len, self.key))
        for group in self.groups:
            for value in group.values or ():
                size += len(value) if isinstance(value, str) else 100
        return size


def pack(differences: Sequence[Difference]) -> bytes:
    """Pickle differences as plain tuples, which takes half the time of named ones."""
    plain = [(key, nodes, tuple(map(tuple, groups)), moved) for key, nodes, groups, moved in differences]
    return pickle.dumps(plain, pickle.HIGHEST_PROTOCOL)


def unpack(data: bytes) -> list[Difference]:
    """Return the differences that `pack` pickled."""
    return [
        Difference(key, nodes, tuple([Group(*group) for group in groups]), moved)
        for key, nodes, groups, moved in pickle.loads(data)
    ]


def pairs_of(nodes: Sequence[str]) -> list[Pair]:
    """Return every pair of nodes, in the order of `nodes`."""
    return list(combinations(nodes, 2))


def differing_keys(sides: Mapping[str, Mapping[KeyValues, Row]]) -> list[KeyValues]:
    """Return the keys whose rows are not the same on all sides."""
    keys: dict[KeyValues, None] = {}
    for side in sides.values():
        keys.update(dict.fromkeys(side))
    first, *others = sides.values()

    def differs(key: KeyValues) -> bool:
        row = first.get(key)
        for side in others:
            other = side.get(key)
            if row is None or other is None:
                if row is not other:
                    return True
            elif row.hash != other.hash:
                return True
        return False

    return [key for key in keys if differs(key)]


def align(keys: Sequence[KeyValues], sides: Mapping[str, Mapping[KeyValues, Row]]) -> Iterator[Difference]:
    """Yield a difference per key whose rows are not the same on all sides."""
    for key in keys:
        groups: dict[int | None, Group] = {}
        for node, side in sides.items():
            row = side.get(key)
            row_hash = None if row is None else row.hash
            known = groups.get(row_hash)
            nodes = (*known.nodes, node) if known else (node,)
            groups[row_hash] = Group(nodes, row_hash, row.values if row else None)
        if len(groups) > 1:
            yield Difference(key, tuple(sides), tuple(groups.values()))


def align_copies(
    counts: Mapping[str, Mapping[int, int]], hashes: Sequence[int], values: Mapping[int, tuple[Value, ...]]
) -> Iterator[Difference]:
    """Yield a difference per row of a keyless table that exists a different number of times on the sides."""
    for row_hash in hashes:
        groups: dict[int, Group] = {}
        for node, side in counts.items():
            copies = side.get(row_hash, 0)
            known = groups.get(copies)
            nodes = (*known.nodes, node) if known else (node,)
            groups[copies] = Group(
                nodes, row_hash if copies else None, values.get(row_hash) if copies else None, copies
            )
        if len(groups) > 1:
            yield Difference((str(row_hash),), tuple(counts), tuple(groups.values()))


def kind_of(difference: Difference, pair: Pair) -> Kind | None:
    """Return how the nodes of a pair differ in this key; missing: the row exists on the first node only."""
    left, right = difference.group_of(pair[0]), difference.group_of(pair[1])
    return _kind(left, right)


def _kind(left: Group | None, right: Group | None) -> Kind | None:
    if left is None or right is None or left is right:
        return None
    if left.hash is None:
        return "extra"
    if right.hash is None:
        return "missing"
    if left.hash == right.hash:
        return "missing" if left.copies > right.copies else "extra"
    return "changed"


def rows_in(difference: Difference, pair: Pair) -> int:
    """Return how many rows differ: one, or the difference in copies of a keyless row."""
    return _rows(difference.group_of(pair[0]), difference.group_of(pair[1]))


def _rows(left: Group | None, right: Group | None) -> int:
    if left is None or right is None or left.hash is None or right.hash is None or left.hash != right.hash:
        return max(_surplus(left), _surplus(right))
    return abs(left.copies - right.copies)


def _surplus(group: Group | None) -> int:
    return group.copies if group is not None and group.hash is not None else 0


def kinds_of(difference: Difference) -> list[tuple[Pair, Kind, int]]:
    """Return the pairs of nodes that differ in this key, with the kind of difference and the number of rows."""
    kinds = []
    for pair in pairs_of(difference.nodes):
        left, right = difference.group_of(pair[0]), difference.group_of(pair[1])
        kind = _kind(left, right)
        if kind is not None:
            kinds.append((pair, kind, _rows(left, right)))
    return kinds


def differing_pairs(difference: Difference) -> list[Pair]:
    """Return the pairs of nodes that differ in this key."""
    return [pair for pair in pairs_of(difference.nodes) if kind_of(difference, pair) is not None]


def changed_columns(spec: TableSpec, left: Group, right: Group) -> list[str]:
    """Return the columns in which two rows differ."""
    if left.values is None or right.values is None:
        return []
    return [
        column.name
        for column, one, other in zip(spec.columns, left.values, right.values, strict=True)
        if one != other and not _same(column, one, other, spec)
    ]


def _same(column: ColumnSpec, one: Value, other: Value, spec: TableSpec) -> bool:
    if column.encoding == "canonical":
        return same_text(column.type, one, other, column.rule or NO_RULE)
    return same(column, one, other, spec.numeric)
