"""The hash of `trueup.rows.lookup3` of many rows at once, with numpy: no Python per row, and without Python's lock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.rows.lookup3 import FINAL, FIRST, MIX

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Words = NDArray[np.uint32]

# Bytes that are mixed at a time. Each row is filled up with zeros, to at least one byte more.
STEP = 12
# Rows whose states fit into the cache of a core.
_ROWS = 8192


def padding(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return by how many bytes rows of these lengths are filled up."""
    return STEP - lengths % STEP


def hashes(data: Any, starts: NDArray[np.int64], lengths: NDArray[np.int64], seeds: Sequence[int]) -> list[Any]:
    """Return the hashes of padded rows in a buffer, per seed; `starts` are multiples of STEP."""
    # One array per place in a step, so that the words of many rows are read in one go.
    words: Words = np.ascontiguousarray(np.frombuffer(data, "<u4").reshape(-1, 3).T.astype(np.uint32, copy=False))
    steps = lengths // STEP
    # Longest first: in each step, those that have not ended are the first ones.
    order = np.argsort(-steps, kind="stable")
    found = np.empty((len(seeds), len(starts)), np.uint64)
    for first in range(0, len(order), _ROWS):
        some = order[first : first + _ROWS]
        found[:, some] = _hashes(words, starts[some] // STEP, steps[some], lengths[some], seeds)
    return list(found)


def _hashes(words: Words, places: Any, steps: Any, lengths: Any, seeds: Sequence[int]) -> Any:
    size = len(places)
    a, b, c = (np.empty((len(seeds), size), np.uint32) for _ in range(3))
    spare = np.empty_like(a)
    for state in (a, b, c):
        state[:] = (lengths + FIRST).astype(np.uint32)
    for number, seed in enumerate(seeds):
        a[number] += np.uint32(seed >> 32 & 0xFFFFFFFF)
        b[number] += np.uint32(seed & 0xFFFFFFFF)
    _mix(a, b, c, spare)
    for step in range(int(steps[0])):
        # Of steps in descending order.
        left = size if steps[-1] > step else int(np.searchsorted(-steps, -step))
        one, two, three = (state[:, :left] for state in (a, b, c))
        _add(words, places[:left] + step, (one, two, three))
        _mix(one, two, three, spare[:, :left])
    _add(words, places + steps, (a, b, c), is_last=True)
    states = (c, a, b)
    for number, bits in enumerate(FINAL):
        state, other = states[number % 3], states[(number + 2) % 3]
        state ^= other
        state -= other << np.uint32(bits) | other >> np.uint32(32 - bits)
    return b.astype(np.uint64) << np.uint64(32) | c


def _add(words: Words, places: Any, states: tuple[Words, Words, Words], *, is_last: bool = False) -> None:
    for number, (column, state) in enumerate(zip(words, states, strict=True)):
        taken = column.take(places)
        # The lowest byte of the last number is the one of the length.
        state += taken << np.uint32(8) if is_last and number == 2 else taken


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
