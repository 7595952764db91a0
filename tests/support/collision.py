"""Computes other bytes with the same row hash, with the help of its seed: the hash can be inverted."""

from __future__ import annotations

import struct

from trueup.rows.lookup3 import FINAL, FIRST, MIX, hash_bytes

_MASK = 2**32 - 1
_LENGTH = 12


def colliding(data: bytes, seed: int, choice: int = 1) -> bytes:
    """Return 12 bytes with the hash of `data`; another `choice` makes others."""
    known = hash_bytes(data, seed)
    state = [known & _MASK, choice & _MASK, known >> 32]
    for number in reversed(range(len(FINAL))):
        place, other = number % 3, (number + 2) % 3
        state[place] = (state[place] + _rotated(state[other], FINAL[number])) & _MASK ^ state[other]
    c, a, b = state
    after = _unmixed(a, b, c)
    start = (FIRST + _LENGTH) & _MASK
    before = _mixed((start + (seed >> 32)) & _MASK, (start + seed) & _MASK, start) if seed else (start,) * 3
    made = struct.pack("<3I", *((two - one) & _MASK for one, two in zip(before, after, strict=True)))
    assert hash_bytes(made, seed) == known
    return made


def _mixed(a: int, b: int, c: int) -> tuple[int, int, int]:
    one, two, three = a, c, b
    for bits in MIX:
        one = ((one - two) & _MASK) ^ _rotated(two, bits)
        one, two, three = three, one, (two + three) & _MASK
    return one, three, two


def _unmixed(a: int, b: int, c: int) -> tuple[int, int, int]:
    one, two, three = a, c, b
    for bits in reversed(MIX):
        one, two, three = two, (three - one) & _MASK, one
        one = ((one ^ _rotated(two, bits)) + two) & _MASK
    return one, three, two


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _MASK
