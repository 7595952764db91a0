"""Numbers of key values, in the order of the values: what blocks by key range are cut by.

The number of a date or time is its canonical one, that of a decimal is the largest integer that is not larger, and that
of a uuid is its first 63 bits. All nodes that compute them order the values of these classes in the same way.
"""

from __future__ import annotations

import struct

from trueup.rows.canonical import text_of
from trueup.rows.spec import ValueClass

# Classes with numbers, and the size that a number may have: the ends of blocks are values of the type too.
LIMITS: dict[ValueClass, int] = {
    "int": 2**63,
    "date": 2**30,
    "timestamp": 2**62,
    "instant": 2**62,
    "decimal": 10**18,
    "uuid": 2**63,
}


def is_possible(kind: ValueClass, low: int, end: int) -> bool:
    """Return whether blocks from the number `low` up to `end` can be written as values."""
    limit = LIMITS[kind]
    # An integer key may end with the largest integer: its last block is open.
    return -limit <= low and (end <= limit if kind != "uuid" else end < limit)


def text_of_number(kind: ValueClass, number: int) -> str:
    """Return the smallest value with a number, as PostgreSQL prints it."""
    if kind in ("int", "decimal"):
        return str(number)
    if kind == "uuid":
        return text_of(kind, (number << 65).to_bytes(16, "big"))
    return text_of(kind, struct.pack(">i" if kind == "date" else ">q", number))
