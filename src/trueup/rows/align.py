"""Two or more sides of the same keys, one verdict for each key: who agrees with whom, and what differs.

Rows meet by their encoded key in a map, never by sorted order, so no collation or enum order can misplace one.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Literal, NamedTuple

from trueup.rows.encode import Value, same
from trueup.rows.fetch import Row
from trueup.rows.keys import KeyValues
from trueup.rows.spec import TableSpec

Kind = Literal["missing", "extra", "changed"]
Pair = tuple[str, str]


# Tuples: a run makes a million of these, and frozen dataclasses take several times as long to make and to carry.
class Group(NamedTuple):
    """Nodes that hold the same for a key: the same row, or none (`hash` is None). `copies`: twins of a keyless row."""

    nodes: tuple[str, ...]
    hash: int | None
    values: tuple[Value, ...] | None = None
    copies: int = 1


class Difference(NamedTuple):
    """One key on which nodes disagree."""

    key: KeyValues
    nodes: tuple[str, ...]  # all that were asked, in the order of the run
    groups: tuple[Group, ...]

    def group_of(self, node: str) -> Group | None:
        """What a node holds, or None if it was not asked."""
        for group in self.groups:
            if node in group.nodes:
                return group
        return None

    def size(self) -> int:
        """Roughly how many bytes this takes, to keep results within bounds."""
        size = 200 + sum(map(len, self.key))
        for group in self.groups:
            for value in group.values or ():
                size += len(value) if isinstance(value, str) else 100
        return size


def pack(differences: Sequence[Difference]) -> bytes:
    """Differences as bytes; plain tuples are carried in half the time of named ones."""
    plain = [(key, nodes, tuple(map(tuple, groups))) for key, nodes, groups in differences]
    return pickle.dumps(plain, pickle.HIGHEST_PROTOCOL)


def unpack(data: bytes) -> list[Difference]:
    """What `pack` made."""
    return [
        Difference(key, nodes, tuple([Group(*group) for group in groups])) for key, nodes, groups in pickle.loads(data)
    ]


def pairs_of(nodes: Sequence[str]) -> list[Pair]:
    """Every pair of nodes, in the order they were given."""
    return list(combinations(nodes, 2))


def differing_keys(sides: Mapping[str, Mapping[KeyValues, Row]]) -> list[KeyValues]:
    """The keys whose rows are not the same on all sides."""
    keys: dict[KeyValues, None] = {}
    for side in sides.values():
        keys.update(dict.fromkeys(side))
    first, *others = sides.values()
    nothing = Row(0)

    def differs(key: KeyValues) -> bool:
        mine = first.get(key)
        for other in others:
            theirs = other.get(key)
            if (mine is None) != (theirs is None) or (mine or nothing).hash != (theirs or nothing).hash:
                return True
        return False

    return [key for key in keys if differs(key)]


def align(keys: Sequence[KeyValues], sides: Mapping[str, Mapping[KeyValues, Row]]) -> Iterator[Difference]:
    """A difference for every key on which the sides disagree."""
    for key in keys:
        groups: dict[int | None, Group] = {}
        for node, side in sides.items():
            row = side.get(key)
            mark = None if row is None else row.hash
            known = groups.get(mark)
            nodes = (*known.nodes, node) if known else (node,)
            groups[mark] = Group(nodes, mark, row.values if row else None)
        if len(groups) > 1:
            yield Difference(key, tuple(sides), tuple(groups.values()))


def align_copies(
    counts: Mapping[str, Mapping[int, int]], hashes: Sequence[int], values: Mapping[int, tuple[Value, ...]]
) -> Iterator[Difference]:
    """A difference for every row of a keyless table that the sides hold a different number of times."""
    for mark in hashes:
        groups: dict[int, Group] = {}
        for node, side in counts.items():
            copies = side.get(mark, 0)
            known = groups.get(copies)
            nodes = (*known.nodes, node) if known else (node,)
            groups[copies] = Group(nodes, mark if copies else None, values.get(mark) if copies else None, copies)
        if len(groups) > 1:
            yield Difference((str(mark),), tuple(counts), tuple(groups.values()))


def kind_of(difference: Difference, pair: Pair) -> Kind | None:
    """How the two nodes of a pair differ on this key: missing means on the first and not on the second."""
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
    """How many rows a difference stands for: one, or as many as there are more copies of a keyless row."""
    return _rows(difference.group_of(pair[0]), difference.group_of(pair[1]))


def _rows(left: Group | None, right: Group | None) -> int:
    if left is None or right is None or left.hash is None or right.hash is None or left.hash != right.hash:
        return max(_surplus(left), _surplus(right))
    return abs(left.copies - right.copies)


def _surplus(group: Group | None) -> int:
    return group.copies if group is not None and group.hash is not None else 0


def kinds_of(difference: Difference) -> list[tuple[Pair, Kind, int]]:
    """The pairs of nodes that disagree on this key: how, and in how many rows."""
    found = []
    for pair in pairs_of(difference.nodes):
        left, right = difference.group_of(pair[0]), difference.group_of(pair[1])
        kind = _kind(left, right)
        if kind is not None:
            found.append((pair, kind, _rows(left, right)))
    return found


def differing_pairs(difference: Difference) -> list[Pair]:
    """The pairs of nodes that disagree on this key."""
    return [pair for pair in pairs_of(difference.nodes) if kind_of(difference, pair) is not None]


def changed_columns(spec: TableSpec, left: Group, right: Group) -> list[str]:
    """The columns in which two rows differ."""
    if left.values is None or right.values is None:
        return []
    return [
        column.name
        for column, mine, theirs in zip(spec.columns, left.values, right.values, strict=True)
        if mine != theirs and not same(column, mine, theirs, spec.numeric)
    ]
