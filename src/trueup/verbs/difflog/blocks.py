"""The six blocks of the diff: which signed versions a merged update brings forth, as the table of the document says.

| N | sign | S               | F             | state       | when            |
|---|------|-----------------|---------------|-------------|-----------------|
| 1 | -1   | old_S           | old_F         | old         | old_F <= new_F  |
| 2 | +1   | 1 + old_S       | new_F         | new + old   | old_F <= new_F  |
| 3 | -1   | 0               | new_F         | empty       | old_F < new_F   |
| 4 | +1   | 0               | old_F         | empty       | old_F < new_F   |
| 5 | +1   | 1               | new_F         | new         | old_F is null   |
| 6 | -1   | 0               | new_F         | empty       | old_F is null   |

Deleted entities follow from it: a tombstone brings no new state (no block 2, no block 5), and where the old state is
itself a tombstone there is nothing to cancel (no block 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column


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
    """The numbers of all blocks, to be exploded: a row then stands once for each, and `when` says which of them are."""
    from pyspark.sql import functions as f

    return f.array(*[f.lit(block.number) for block in BLOCKS])


def of_block(what: str, states: Mapping[str, str] | None = None) -> str:
    """Spark SQL for one column of the table, by the number in `Block`; `states` tells where old and merged are."""
    told = {
        block.number: (states or {}).get(block.state, "NULL") if what == "state" else getattr(block, what)
        for block in BLOCKS
    }
    cases = " ".join(f"WHEN {number} THEN {text}" for number, text in told.items() if text != "NULL")
    return f"CASE Block {cases} END"
