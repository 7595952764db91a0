"""The six blocks of the diff: the signed versions that a merged update writes.

| N | sign | S               | F             | state       | when            |
|---|------|-----------------|---------------|-------------|-----------------|
| 1 | -1   | old_S           | old_F         | old         | old_F <= new_F  |
| 2 | +1   | 1 + old_S       | new_F         | new + old   | old_F <= new_F  |
| 3 | -1   | 0               | new_F         | empty       | old_F < new_F   |
| 4 | +1   | 0               | old_F         | empty       | old_F < new_F   |
| 5 | +1   | 1               | new_F         | new         | old_F is null   |
| 6 | -1   | 0               | new_F         | empty       | old_F is null   |

For deleted entities: a tombstone writes no new state (no block 2, no block 5), and an old state that is a tombstone
need not be cancelled (no block 1).
"""

from __future__ import annotations

from dataclasses import dataclass

# When a block is written.
KNOWN, FASTER, UNKNOWN = "old_F <= new_F", "old_F < new_F", "old_F is null"
# The state that a block contains, and the state whose fast version it has.
OLD, MERGED, EMPTY = "old", "merged", "empty"


@dataclass(frozen=True)
class Block:
    """One block. Its slow version is `plus`, and with `after_old` also the old slow version.

    `state` is OLD, MERGED or EMPTY, `fast` OLD or MERGED. It is not written if the state `unless` is a tombstone.
    """

    number: int
    sign: int
    plus: int
    after_old: bool
    fast: str
    state: str
    when: str
    unless: str = ""


BLOCKS = (
    Block(1, -1, 0, True, OLD, OLD, KNOWN, unless=OLD),
    Block(2, +1, 1, True, MERGED, MERGED, KNOWN, unless=MERGED),
    Block(3, -1, 0, False, MERGED, EMPTY, FASTER),
    Block(4, +1, 0, False, OLD, EMPTY, FASTER),
    Block(5, +1, 1, False, MERGED, MERGED, UNKNOWN, unless=MERGED),
    Block(6, -1, 0, False, MERGED, EMPTY, UNKNOWN),
)
