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

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as f


@dataclass(frozen=True)
class Block:
    """One block: sign, versions and state as Spark SQL over old_F, new_F, old_S, and the condition."""

    number: int
    sign: int
    slow: str
    fast: str
    state: str  # old, merged, or empty
    when: str


_KNOWN, _FASTER, _UNKNOWN = "old_F <= new_F", "old_F < new_F", "old_F IS NULL"

BLOCKS = (
    Block(1, -1, "coalesce(old_S, 0L)", "coalesce(old_F, new_F)", "old", f"{_KNOWN} AND NOT old_deleted"),
    Block(2, +1, "1L + coalesce(old_S, 0L)", "coalesce(new_F, 0L)", "merged", f"{_KNOWN} AND NOT new_deleted"),
    Block(3, -1, "0L", "coalesce(new_F, 0L)", "empty", _FASTER),
    Block(4, +1, "0L", "coalesce(old_F, 0L)", "empty", _FASTER),
    Block(5, +1, "1L", "coalesce(new_F, 0L)", "merged", f"{_UNKNOWN} AND NOT new_deleted"),
    Block(6, -1, "0L", "coalesce(new_F, 0L)", "empty", _UNKNOWN),
)


def blocks() -> Column:
    """Return the numbers of all blocks as an array, to be exploded into one row per block and filtered by `when`."""
    return f.array(*[f.lit(block.number) for block in BLOCKS])


def of_block(column: str, states: Mapping[str, str] | None = None) -> str:
    """Return Spark SQL for one column of the table above, by the number in `Block`.

    `states` maps `old` and `merged` to the Spark SQL of these states.
    """
    texts = {
        block.number: (states or {}).get(block.state, "NULL") if column == "state" else getattr(block, column)
        for block in BLOCKS
    }
    cases = " ".join(f"WHEN {number} THEN {text}" for number, text in texts.items() if text != "NULL")
    return f"CASE Block {cases} END"
