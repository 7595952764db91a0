"""What becomes of a key: one decision from what all nodes hold, in each of the modes."""

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
    """All nodes become like this one, as far as that is allowed; `why`: what is said of the rest."""

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
    """Nothing is done, for this reason."""

    reason: str


Decision = Like | Gone | Made | Leave


@dataclass(frozen=True)
class Batch:
    """Some keys, and what every node holds of them."""

    layout: Layout
    nodes: tuple[str, ...]
    keys: Sequence[KeyValues]
    ids: Sequence[bytes]
    sides: Sequence[Mapping[bytes, Line]]
    is_plain: bool

    def lines(self, at: int) -> list[Line | None]:
        """What the nodes hold of one key."""
        key = self.ids[at]
        return [side.get(key) for side in self.sides]


class Mode(Protocol):
    """Decides; picklable, for it goes to the tasks."""

    def decide(self, batch: Batch, at: int) -> Decision:
        """What becomes of a key on which the nodes differ."""
        ...


@dataclass(frozen=True)
class SourceOfTruth:
    """The others become like one node."""

    source: int
    allow: frozenset[Act] = ALL
    why: str = ""

    def decide(self, batch: Batch, at: int) -> Decision:
        """Always the same."""
        return self._always

    @cached_property
    def _always(self) -> Like:
        return Like(self.source, self.allow, self.why)


@dataclass(frozen=True)
class Bidirectional:
    """A row that is on some nodes and not on others is inserted where it lacks; no row is changed."""

    def decide(self, batch: Batch, at: int) -> Decision:
        """From whoever holds the row, if all who do agree."""
        held = {line.hash: node for node, line in reversed(list(enumerate(batch.lines(at)))) if line is not None}
        if len(held) > 1:
            return Leave("the nodes that hold the row disagree: changed rows are left alone")
        return Like(next(iter(held.values())), INSERTS) if held else Leave("no node holds the row")


@dataclass(frozen=True)
class Majority:
    """What more than half of the nodes hold, be it a row or none."""

    def decide(self, batch: Batch, at: int) -> Decision:
        """Nobody has it: nothing is done."""
        marks = [None if line is None else line.hash for line in batch.lines(at)]
        mark, count = Counter(marks).most_common(1)[0]
        if 2 * count <= len(marks):
            return Leave("a tie: no value is held by more than half of the nodes")
        return Like(marks.index(mark))


@dataclass(frozen=True)
class FixNulls:
    """NULL cells are filled from the other nodes, all ways; nothing else is touched."""

    def decide(self, batch: Batch, at: int) -> Decision:
        """A cell is filled where all nodes that have a value agree on it."""
        rows = {node: split(line.fields) for node, line in enumerate(batch.lines(at)) if line is not None}
        filled: dict[int, Sequence[bytes]] = {}
        for place in batch.layout.taken:
            is_number = batch.layout.carried[place].encoding == "numeric" and batch.layout.spec.numeric == "value"
            values = {_by_value(row[place], is_number): row[place] for row in rows.values() if row[place] != NULL}
            if len(values) != 1:
                continue
            for node, row in rows.items():
                if row[place] == NULL:
                    row[place] = next(iter(values.values()))
                    filled[node] = row
        if filled:
            return Made({node: row[: len(batch.layout.carried)] for node, row in filled.items()})
        return Leave("no NULL of it can be filled from another node")


def _by_value(field: bytes, is_number: bool) -> bytes:
    return trim_scale(field.decode()).encode() if is_number else field
