"""What the comparison of rows works on and returns: keys with their hashes, hashed blocks, differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from trueup.engine.work import More
from trueup.rows.align import Difference, Pair, differing_pairs
from trueup.rows.digest import Digest
from trueup.rows.keys import Block, KeyValues

# The `origin` of a task or an answer is the number of its block in the plan; this one: no block of the plan.
NOWHERE = -1

# A key that differs, and the hash of its row per node, in the order of the task's nodes; None: no row.
Known = tuple[KeyValues, tuple["int | None", ...]]


@dataclass(frozen=True)
class Ranges:
    """The blocks of a run, and how they were cut."""

    blocks: tuple[Block, ...]
    # The node whose keys are the boundaries.
    anchor: str
    # Estimated rows per node.
    estimates: Mapping[str, int]
    sample: str
    # Per block, the keys that cut it into units; empty if the blocks have no units.
    inner: tuple[tuple[KeyValues, ...], ...] = ()

    def inside(self, number: int) -> tuple[KeyValues, ...]:
        """Return the keys that cut a block into units."""
        return self.inner[number] if self.inner else ()


@dataclass(frozen=True)
class CompareKeys:
    """Task: compare the rows of these keys, which differ by their hashes."""

    before: tuple[Known, ...]
    nodes: tuple[str, ...]
    block: Block = field(default=Block(None, None))
    origin: int = NOWHERE


@dataclass(frozen=True)
class Hashed:
    """Answer: a block, or a part of it, was hashed on these nodes.

    Of its `units`, `differing` disagree; `where` has their ranges if the run is a check. `step` is the number of rows
    for the next query of a gentle run.
    """

    block: Block
    counts: Mapping[str, int]
    mismatched: bool
    is_part: bool = False
    step: int = 0
    units: int = 1
    differing: int = 0
    where: tuple[Block, ...] = ()
    # Per unit: its digest if it is the same on all nodes. None at all: they are not known.
    digests: tuple[Digest | None, ...] = ()
    origin: int = NOWHERE


@dataclass(frozen=True)
class Found:
    """Answer: differences, and per pair how many disappeared while they were read (only without a snapshot)."""

    differences: tuple[Difference, ...]
    in_flight: Counter[Pair] = field(default_factory=Counter)
    origin: int = NOWHERE


Answer = Hashed | Found | More


def settled_pairs(before: Difference, after: Difference | None) -> Iterator[Pair]:
    """Yield the pairs that disagreed on a key before and agree now."""
    still = set(differing_pairs(after)) if after else set()
    yield from (pair for pair in differing_pairs(before) if pair not in still)


def by_key(differences: Sequence[Difference]) -> dict[KeyValues, Difference]:
    """Return the differences by their key."""
    return {difference.key: difference for difference in differences}
