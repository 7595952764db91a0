"""The tasks of a diff and their results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from trueup.engine.work import More
from trueup.rows.align import Difference, Pair, differing_pairs
from trueup.rows.keys import Block, KeyValues

T = TypeVar("T")


# The number of the block of the plan that a task or an answer belongs to; none of them, outside of the first look.
NOWHERE = -1


@dataclass(frozen=True)
class HashBlock:
    """Hash a block on these nodes; where it differs, go down to the rows. `counted`: its rows were counted before.

    The keys `inner` cut it into units that are hashed apart. In a `dense` block most units are expected to differ: its
    rows are marked one by one at once. With a `step`, only about so many of its rows are hashed at a time, and the rest
    comes back as another task.
    """

    block: Block
    nodes: tuple[str, ...]
    counted: bool = False
    inner: tuple[KeyValues, ...] = ()
    dense: bool = False
    step: int = 0
    origin: int = NOWHERE


@dataclass(frozen=True)
class CompareUnit:
    """Compare the rows of a block that is small enough and known to differ."""

    block: Block
    nodes: tuple[str, ...]
    origin: int = NOWHERE


# A key that differs, and the hash of its row on each node, in the order of the task's nodes; None: no row.
Known = tuple[KeyValues, tuple["int | None", ...]]


@dataclass(frozen=True)
class CompareKeys:
    """Compare these rows, known to differ; `before` is what was seen of them."""

    before: tuple[Known, ...]
    nodes: tuple[str, ...]
    block: Block = field(default=Block(None, None))
    origin: int = NOWHERE


Task = HashBlock | CompareUnit | CompareKeys


@dataclass(frozen=True)
class Hashed:
    """A block was hashed on these nodes; this many rows are in it. `step`: how many to take the next time.

    Of its `units`, `differing` disagreed; a check is told which they are.
    """

    block: Block
    counts: Mapping[str, int]
    mismatched: bool
    is_part: bool = False
    step: int = 0
    units: int = 1
    differing: int = 0
    where: tuple[Block, ...] = ()
    origin: int = NOWHERE


@dataclass(frozen=True)
class Found:
    """Differences, and how many that were seen a moment ago are gone (only without a snapshot)."""

    differences: tuple[Difference, ...]
    in_flight: Counter[Pair] = field(default_factory=Counter)
    origin: int = NOWHERE


@dataclass(frozen=True)
class Ended:
    """A task of this block came to its end without an error."""

    origin: int


Answer = Hashed | Found | More


def settled_pairs(before: Difference, after: Difference | None) -> Iterator[Pair]:
    """The pairs that disagreed on a key before and agree now."""
    still = set(differing_pairs(after)) if after else set()
    for pair in differing_pairs(before):
        if pair not in still:
            yield pair


def by_key(differences: Sequence[Difference]) -> dict[KeyValues, Difference]:
    """Differences by their key."""
    return {difference.key: difference for difference in differences}
