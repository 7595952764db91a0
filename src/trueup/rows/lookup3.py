"""The short hash of a row: the reference.

It is the hash that PostgreSQL has for bytes (`hashbyteaextended`, Bob Jenkins' lookup3), which starts with a seed of 64
bits. The columns of a row are a chain: the hash so far is the seed of the next one. A number is added to the hash with
an exclusive or, and bytes are hashed with it. The second hash of a row is that of the first one, so that a digest has
two sums as well.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trueup.rows.canonical import FORMS
from trueup.rows.spec import ValueClass

# Longer values are replaced by their md5: 12 bytes are mixed at a time, which is fast for many short values only.
LONGEST = 2048
FIRST = 0x9E3779B9 + 3923095
MIX = (4, 6, 8, 16, 19, 4)
FINAL = (14, 11, 25, 16, 4, 14, 24)
# Columns whose NULLs are one number.
NULLS = 60
# The size of the forms that are numbers.
_NUMBER = 8
_MASK, _MASK_64 = 2**32 - 1, 2**64 - 1


@dataclass(frozen=True)
class Step:
    """What is added to the hash next: which columns are NULL, from `column` on, or the value of a column."""

    column: int
    is_nulls: bool
    is_number: bool
    # Whether the hash is mixed before: two numbers must not be added to each other.
    mixes: bool


def steps_of(kinds: Sequence[ValueClass]) -> Iterator[Step]:
    """Yield the steps of the columns of a row."""
    follows_number = False
    listed = [(start, True) for start in range(0, len(kinds), NULLS)]
    for column, is_nulls in (*listed, *((number, False) for number in range(len(kinds)))):
        is_number = is_nulls or is_number_class(kinds[column])
        yield Step(column, is_nulls, is_number, mixes=is_number and follows_number)
        follows_number = is_number


def is_number_class(kind: ValueClass) -> bool:
    """Return whether the form of a class is a number of at most 64 bits."""
    return 0 < FORMS[kind].size <= _NUMBER


def nulls_of(is_null: Sequence[bool], start: int) -> int:
    """Return which columns from `start` on are NULL, as a number."""
    return sum(1 << place for place, found in enumerate(is_null[start : start + NULLS]) if found)


def seeds_of(seed: bytes) -> tuple[int, int]:
    """Return the seed of a run as two signed integers."""
    high, low = struct.unpack(">qq", seed)
    # PostgreSQL leaves out a step for 0.
    return high or 1, low or 1


def hash_row(kinds: Sequence[ValueClass], values: Sequence[bytes | None], seed: bytes) -> tuple[int, int]:
    """Return both hashes of the canonical values of a row, as unsigned numbers."""
    first, second = seeds_of(seed)
    state = first & _MASK_64
    is_number = False
    for step in steps_of(kinds):
        is_number = step.is_number
        if step.mixes:
            state = hash_bytes(b"", state)
        if step.is_nulls:
            state ^= nulls_of([value is None for value in values], step.column)
            continue
        value = values[step.column] or b""
        if is_number:
            state ^= int.from_bytes(value, "big", signed=True) & _MASK_64
        else:
            state = hash_bytes(shortened(value, seed), state)
    high = hash_bytes(b"", state) if is_number else state
    return high, hash_bytes(b"", high ^ (second & _MASK_64))


def shortened(value: bytes, seed: bytes) -> bytes:
    """Return a value or, if it is long, its md5 with the seed, as text."""
    if len(value) <= LONGEST:
        return value
    return hashlib.md5(seed + value, usedforsecurity=False).hexdigest().encode()


def hash_bytes(data: bytes, seed: int) -> int:
    """Return the hash of bytes, as an unsigned number."""
    a = b = c = (FIRST + len(data)) & _MASK
    if seed:
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


def _mixed(a: int, b: int, c: int) -> tuple[int, int, int]:
    one, two, three = a, c, b
    for bits in MIX:
        one = ((one - two) & _MASK) ^ _rotated(two, bits)
        one, two, three = three, one, (two + three) & _MASK
    return one, three, two


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _MASK
