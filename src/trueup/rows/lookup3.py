"""The hash that PostgreSQL has for bytes (`hashbyteaextended`), Bob Jenkins' lookup3 with a seed: the reference.

It is faster than md5. A row is hashed with two seeds, so that a digest has two sums as well.
"""

from __future__ import annotations

import hashlib
import struct

# Longer rows are replaced by their md5: 12 bytes are mixed at a time, which is fast for many short rows only.
LONGEST = 2048
FIRST = 0x9E3779B9 + 3923095
MIX = (4, 6, 8, 16, 19, 4)
FINAL = (14, 11, 25, 16, 4, 14, 24)
# Of all lengths of the last step.
SAMPLES = tuple(bytes(range(200, 200 + length)) for length in range(26))
_MASK = 2**32 - 1


def seeds_of(seed: bytes) -> tuple[int, int]:
    """Return the seed of a run as two signed integers."""
    high, low = struct.unpack(">qq", seed)
    # PostgreSQL leaves out a step for 0.
    return high or 1, low or 1


def hash_bytes(data: bytes, seed: int) -> int:
    """Return the hash of bytes, as an unsigned number."""
    a = b = c = (FIRST + len(data)) & _MASK
    a, b, c = _mixed((a + (seed >> 32)) & _MASK, (b + seed) & _MASK, c)
    whole = len(data) // 12 * 12
    for place in range(0, whole, 12):
        one, two, three = struct.unpack_from("<3I", data, place)
        a, b, c = _mixed((a + one) & _MASK, (b + two) & _MASK, (c + three) & _MASK)
    one, two, three = struct.unpack("<3I", data[whole:].ljust(12, b"\0"))
    # The lowest byte of the last number is the one of the length.
    state: list[int] = [(c + (three << 8)) & _MASK, (a + one) & _MASK, (b + two) & _MASK]
    for number, bits in enumerate(FINAL):
        place, other = number % 3, (number + 2) % 3
        state[place] = ((state[place] ^ state[other]) - _rotated(state[other], bits)) & _MASK
    return state[2] << 32 | state[0]


def hash_row(row: bytes, seed: bytes) -> tuple[int, int]:
    """Return both hashes of an encoded row, as unsigned numbers."""
    if len(row) > LONGEST:
        row = hashlib.md5(row, usedforsecurity=False).digest()
    first, second = seeds_of(seed)
    return hash_bytes(row, first), hash_bytes(row, second)


def _mixed(a: int, b: int, c: int) -> tuple[int, int, int]:
    one, two, three = a, c, b
    for bits in MIX:
        one = ((one - two) & _MASK) ^ _rotated(two, bits)
        one, two, three = three, one, (two + three) & _MASK
    return one, three, two


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _MASK
