"""A run that records certificates: it hashes the blocks of a validation, and hands over their digests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from trueup.rows.digest import Digest
from trueup.rows.keys import Block, chain
from trueup.task.compare.model import Hashed, Ranges

# Blocks of a validation are small: that many are hashed in one statement.
_MOST_UNITS = 10

Digests = dict[int, tuple[Digest | None, ...]]


def units_of(ranges: Ranges) -> list[Block]:
    """Return the units of all blocks of a plan, in key order; a block without units is one."""
    return [unit for number, block in enumerate(ranges.blocks) for unit in chain(ranges.inside(number), within=block)]


def cut_like(ranges: Ranges, units: Sequence[Block], *, is_gentle: bool) -> Ranges:
    """Return a plan with these units; a gentle run hashes blocks in steps, so each is a block of its own."""
    size = 1 if is_gentle else _MOST_UNITS
    groups = [units[first : first + size] for first in range(0, len(units), size)]
    return replace(
        ranges,
        blocks=tuple(Block(group[0].start, group[-1].end) for group in groups),
        inner=tuple(tuple(unit.start for unit in group[1:] if unit.start is not None) for group in groups),
    )


def add_digests(digests: Digests, answer: Hashed) -> None:
    """Add the digests of a block, or of a part of one; parts add up."""
    before = digests.get(answer.origin)
    if before is None:
        digests[answer.origin] = answer.digests
    else:
        pairs = zip_longest(before, answer.digests)
        digests[answer.origin] = tuple(None if left is None or right is None else left + right for left, right in pairs)


def compared_ranges(
    ranges: Ranges, digests: Mapping[int, Sequence[Digest | None]]
) -> list[tuple[Block, Digest | None]]:
    """Return the units of a plan with their digests."""
    compared: list[tuple[Block, Digest | None]] = []
    for number, block in enumerate(ranges.blocks):
        units = chain(ranges.inside(number), within=block)
        known = digests.get(number, ())
        compared += zip(units, known if len(known) == len(units) else [None] * len(units), strict=True)
    return compared
