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

from dataclasses import dataclass


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


def blocks_sql(multiplier: int) -> str:
    """The signed versions of a row as an array; the row has old_F, new_F, old_S, old_deleted and new_deleted."""
    parts = []
    for block in BLOCKS:
        state = "CAST(NULL AS STRING)" if block.state == "empty" else f"'{block.state}'"
        fields = [
            f"'Block', {block.number}",
            f"'Sign', CAST({block.sign} AS TINYINT)",
            f"'S', {block.slow}",
            f"'F', {block.fast}",
            f"'Version', {multiplier}L * ({block.slow}) + ({block.fast})",
            f"'state', {state}",
        ]
        parts.append(f"CASE WHEN {block.when} THEN named_struct({', '.join(fields)}) END")
    return f"filter(array({', '.join(parts)}), part -> part IS NOT NULL)"
