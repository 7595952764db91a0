"""The hash of `trueup.rows.lookup3` of many rows at once, with numpy: no Python per row, and without Python's lock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.rows.lookup3 import FINAL, FIRST, MIX, hash_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Words = NDArray[np.uint32]
    States = tuple[Words, Words, Words]

# Bytes that are mixed at a time.
_STEP = 12
# Rows whose states fit into the cache of a core.
_ROWS = 16_384
# By the number of bytes of the last step: the bits of its three numbers that are of the value.
_LAST = np.array([[2 ** (8 * min(4, max(0, size - place))) - 1 for size in range(_STEP)] for place in (0, 4, 8)])
_LAST_BITS: Words = _LAST.astype(np.uint32)


class Hashes:
    """The hashes of rows, to which one column after the other is added."""

    def __init__(self, size: int, seed: int) -> None:
        # As long as all rows have the same.
        self._same: int | None = seed % 2**64
        self._states = np.empty(size, np.uint64)

    def add_numbers(self, numbers: Any) -> None:
        """Add a number per row."""
        self._states = self.found() ^ numbers.astype(np.int64, copy=False).view(np.uint64)

    def mix(self) -> None:
        """Mix the hashes, so that the next numbers are not added to the last ones."""
        if self._same is not None:
            self._same = hash_bytes(b"", self._same)
            return
        for rows in self._parts():
            self._states[rows] = _mixed(self._states[rows])

    def add_bytes(self, data: Any, offsets: Any) -> None:
        """Add bytes per row: those of a row end where those of the next one begin, in an array of single bytes."""
        states = self.found()
        for rows in self._parts():
            places = offsets[rows.start : rows.stop + 1].astype(np.int64)
            states[rows] = _hashed(states[rows], data[places[0] : places[-1]], places - places[0])

    def found(self) -> Any:
        """Return the hashes."""
        if self._same is not None:
            self._states[:] = self._same
            self._same = None
        return self._states

    def _parts(self) -> Iterator[slice]:
        size = len(self._states)
        for first in range(0, size, _ROWS):
            yield slice(first, min(size, first + _ROWS))


def _mixed(states: Any) -> Any:
    """Return the hashes of no bytes, with these seeds."""
    return _ended(_begun(states, np.zeros(len(states), np.int64)))


def _hashed(states: Any, data: Any, offsets: Any) -> Any:
    places, lengths = offsets[:-1], np.diff(offsets)
    steps = lengths // _STEP
    words = _words(data)
    order: Any = None
    if steps.min() != steps.max():
        # Longest first: in each step, those that have not ended are the first ones.
        order = np.argsort(-steps, kind="stable")
        states, places, lengths, steps = states[order], places[order], lengths[order], steps[order]
    a, b, c = _begun(states, lengths)
    spare = np.empty_like(a)
    for step in range(int(steps[0])):
        left = len(steps) if steps[-1] > step else int(np.searchsorted(-steps, -step))
        one, two, three = a[:left], b[:left], c[:left]
        for number, state in enumerate((one, two, three)):
            state += words.take(places[:left] + (step * _STEP + 4 * number))
        _mix(one, two, three, spare[:left])
    last = places + steps * _STEP
    rest = lengths - steps * _STEP
    for number, state in enumerate((a, b, c)):
        taken = words.take(last + 4 * number) & _LAST_BITS[number].take(rest)
        # The lowest byte of the last number is the one of the length.
        state += taken << np.uint32(8) if number == 2 else taken
    found = _ended((a, b, c))
    if order is None:
        return found
    unordered = np.empty_like(found)
    unordered[order] = found
    return unordered


def _words(data: Any) -> Words:
    """Return the number of 32 bits at each place of the bytes, and at those of a step after them."""
    filled = np.zeros(len(data) + 2 * _STEP, np.uint8)
    filled[: len(data)] = data
    words: Words = np.ndarray((len(data) + _STEP,), "<u4", filled, strides=(1,)).astype(np.uint32)
    return words


def _begun(states: Any, lengths: Any) -> States:
    # PostgreSQL does not mix a seed of 0, which is as rare as two rows with the same hash.
    c = (lengths + FIRST).astype(np.uint32)
    a, b = (states >> np.uint64(32)).astype(np.uint32), states.astype(np.uint32)
    a += c
    b += c
    _mix(a, b, c, np.empty_like(c))
    return a, b, c


def _ended(begun: States) -> Any:
    a, b, c = begun
    states = (c, a, b)
    spare = np.empty_like(a)
    for number, bits in enumerate(FINAL):
        state, other = states[number % 3], states[(number + 2) % 3]
        state ^= other
        np.left_shift(other, np.uint32(bits), out=spare)
        spare |= other >> np.uint32(32 - bits)
        state -= spare
    return b.astype(np.uint64) << np.uint64(32) | c


def _mix(a: Words, b: Words, c: Words, spare: Words) -> None:
    one, two, three = a, c, b
    for bits in MIX:
        one -= two
        np.left_shift(two, np.uint32(bits), out=spare)
        one ^= spare
        np.right_shift(two, np.uint32(32 - bits), out=spare)
        one ^= spare
        two += three
        one, two, three = three, one, two
