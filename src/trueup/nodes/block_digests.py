"""Digests of many blocks in arrays: hundreds of thousands of small blocks cost little to keep and to compare."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Sums = NDArray[np.uint64]

_WRAP = 2**64


@dataclass(frozen=True)
class BlockDigests:
    """Per block that has rows: its number (ascending), rows, and the sums of both halves of their hashes mod 2^64."""

    numbers: Numbers
    counts: Numbers
    high: Sums
    low: Sums

    @classmethod
    def of(cls, lines: Iterable[tuple[Any, Any, Any, Any]]) -> BlockDigests:
        """Return the digests of lines: number, rows, and two sums that may be signed, or larger than 64 bits.

        Lines of the same block add up.
        """
        import numpy as np

        listed = list(lines)
        return cls.added(
            np.array([int(line[0]) for line in listed], np.int64),
            np.array([int(line[1]) for line in listed], np.int64),
            np.array([int(line[2]) % _WRAP for line in listed], np.uint64),
            np.array([int(line[3]) % _WRAP for line in listed], np.uint64),
        )

    @classmethod
    def added(cls, numbers: Numbers, counts: Numbers, high: Sums, low: Sums) -> BlockDigests:
        """Return the digests of blocks in any order; those of the same block add up, modulo 2^64."""
        import numpy as np

        if not len(numbers):
            return cls(numbers, counts, high, low)
        if not (numbers[1:] >= numbers[:-1]).all():
            order = np.argsort(numbers, kind="stable")
            numbers, counts, high, low = numbers[order], counts[order], high[order], low[order]
        starts = np.concatenate([[0], np.flatnonzero(numbers[1:] != numbers[:-1]) + 1])
        if len(starts) == len(numbers):
            return cls(numbers, counts, high, low)
        # Sums of unsigned numbers wrap.
        return cls(numbers[starts], *(np.add.reduceat(one, starts) for one in (counts, high, low)))

    @classmethod
    def merged(cls, parts: Sequence[BlockDigests]) -> BlockDigests:
        """Return the digests of parts of a table, added up per block."""
        import numpy as np

        if not parts:
            return cls.of(())
        columns = zip(*((part.numbers, part.counts, part.high, part.low) for part in parts), strict=True)
        return cls.added(*(np.concatenate(column) for column in columns))

    @property
    def rows(self) -> int:
        """The rows of all blocks."""
        return int(self.counts.sum())

    def at(self, numbers: Numbers) -> BlockDigests:
        """Return the digests of these blocks; a block without rows has zeros."""
        import numpy as np

        if not len(self.numbers):
            zeros = np.zeros(len(numbers), np.int64)
            return BlockDigests(numbers, zeros, zeros.astype(np.uint64), zeros.astype(np.uint64))
        places = np.minimum(np.searchsorted(self.numbers, numbers), len(self.numbers) - 1)
        known = self.numbers[places] == numbers
        columns = (np.where(known, one[places], one.dtype.type(0)) for one in (self.counts, self.high, self.low))
        return BlockDigests(numbers, *columns)


def differing(sides: Sequence[BlockDigests]) -> Iterator[tuple[int, int]]:
    """Yield the blocks whose digests are not the same on all sides, with their rows on all sides together."""
    import numpy as np

    numbers = all_numbers(sides)
    first, *others = [side.at(numbers) for side in sides]
    differs = np.zeros(len(numbers), bool)
    rows = first.counts
    for other in others:
        differs |= (first.counts != other.counts) | (first.high != other.high) | (first.low != other.low)
        rows = rows + other.counts
    yield from zip(numbers[differs].tolist(), rows[differs].tolist(), strict=True)


def most_rows(sides: Sequence[BlockDigests], numbers: Numbers) -> int:
    """Return the sum over these blocks of the rows of the side that has most."""
    import numpy as np

    return int(np.maximum.reduce([side.at(numbers).counts for side in sides]).sum()) if len(numbers) else 0


def all_numbers(sides: Sequence[BlockDigests]) -> Numbers:
    """Return the numbers of all blocks that have rows on a side, ascending."""
    import numpy as np

    first, *others = [side.numbers for side in sides]
    if all(np.array_equal(first, other) for other in others):
        return first
    return np.unique(np.concatenate([first, *others]))
