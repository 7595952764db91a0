"""The modes of a repair: each decides what happens to a key, from the rows of all nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

from trueup.rows.encode import trim_scale
from trueup.rows.keys import KeyValues
from trueup.rows.write.copy_text import NULL, split
from trueup.verbs.repair.layout import Layout
from trueup.verbs.repair.lines import Line

Act = Literal["insert", "update", "delete"]
ACTS: tuple[Act, ...] = ("insert", "update", "delete")
ALL: frozenset[Act] = frozenset(ACTS)
INSERTS: frozenset[Act] = frozenset(("insert",))
UPSERTS: frozenset[Act] = frozenset(("insert", "update"))


@dataclass(frozen=True)
class Like:
    """All nodes become like this one, with the allowed acts only; `why` is the reason listed for the others."""

    source: int
    allow: frozenset[Act] = ALL
    why: str = ""


@dataclass(frozen=True)
class Gone:
    """The row is deleted on every node."""


@dataclass(frozen=True)
class Made:
    """These nodes get a row that was put together: the fields of the carried columns, by node."""

    rows: Mapping[int, Sequence[bytes]]


@dataclass(frozen=True)
class Leave:
    """The key is left as it is, for this reason."""

    reason: str


Decision = Like | Gone | Made | Leave


@dataclass(frozen=True)
class Batch:
    """Some keys, and the rows of every node for them."""

    layout: Layout
    nodes: tuple[str, ...]
    keys: Sequence[KeyValues]
    ids: Sequence[bytes]
    sides: Sequence[Mapping[bytes, Line]]
    is_plain: bool

    def lines(self, place: int) -> list[Line | None]:
        """Return the rows of all nodes for one key."""
        key = self.ids[place]
        return [side.get(key) for side in self.sides]


class Mode(Protocol):
    """Decides per key; picklable, because tasks may run on Spark."""

    def decide(self, batch: Batch, place: int) -> Decision:
        """Return the decision for a key on which the nodes differ."""
        ...


@dataclass(frozen=True)
class SourceOfTruth:
    """The other nodes become like one node."""

    source: int
    allow: frozenset[Act] = ALL
    why: str = ""

    def decide(self, batch: Batch, place: int) -> Decision:
        """Return the same decision for every key."""
        return self._decision

    @cached_property
    def _decision(self) -> Like:
        return Like(self.source, self.allow, self.why)


@dataclass(frozen=True)
class Bidirectional:
    """A row that some nodes have is inserted on the nodes that lack it; no row is changed."""

    def decide(self, batch: Batch, place: int) -> Decision:
        """Take the row of any node that has it, if all those nodes agree."""
        holders = {line.hash: node for node, line in reversed(list(enumerate(batch.lines(place)))) if line is not None}
        if len(holders) > 1:
            return Leave("the nodes have different rows: this mode does not change rows")
        return Like(next(iter(holders.values())), INSERTS) if holders else Leave("no node has the row")


@dataclass(frozen=True)
class Majority:
    """All nodes get what more than half of them have, which may be no row."""

    def decide(self, batch: Batch, place: int) -> Decision:
        """Leave the key if no value has a majority."""
        hashes = [None if line is None else line.hash for line in batch.lines(place)]
        value, count = Counter(hashes).most_common(1)[0]
        if 2 * count <= len(hashes):
            return Leave("no majority: no row is the same on more than half of the nodes")
        return Like(hashes.index(value))


@dataclass(frozen=True)
class FixNulls:
    """NULL fields are filled from the other nodes, in all directions; nothing else is changed."""

    def decide(self, batch: Batch, place: int) -> Decision:
        """Fill a field where all nodes that have a value agree on it."""
        rows = {node: split(line.fields) for node, line in enumerate(batch.lines(place)) if line is not None}
        filled: dict[int, Sequence[bytes]] = {}
        for column in batch.layout.taken:
            is_number = batch.layout.carried[column].encoding == "numeric" and batch.layout.spec.numeric == "value"
            values = {_by_value(row[column], is_number): row[column] for row in rows.values() if row[column] != NULL}
            if len(values) != 1:
                continue
            for node, row in rows.items():
                if row[column] == NULL:
                    row[column] = next(iter(values.values()))
                    filled[node] = row
        if filled:
            return Made({node: row[: len(batch.layout.carried)] for node, row in filled.items()})
        return Leave("no NULL can be filled from another node")


def _by_value(field: bytes, is_number: bool) -> bytes:
    return trim_scale(field.decode()).encode() if is_number else field
