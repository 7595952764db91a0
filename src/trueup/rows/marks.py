"""The rows of a block as pairs of numbers, key mark and row hash: sixteen bytes a row, compared all at once.

The node packs them into two long values, so that neither the driver nor the protocol handles single rows. The mark of a
whole-number key is the key itself; that of any other key is a hash of it, and who wants the key asks the node again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from psycopg import sql

from trueup.db.reader import Reader
from trueup.rows.encode import row_hash
from trueup.rows.fetch import Row, hashes_in_block
from trueup.rows.keys import Block, KeyValues, in_block, ordered, source, where
from trueup.rows.spec import TableSpec
from trueup.rows.types import type_of

if TYPE_CHECKING:
    from psycopg import sql


@dataclass(frozen=True)
class Marks:
    """The rows of one side, sorted by mark: two arrays of 64-bit numbers of the same length."""

    keys: Any
    hashes: Any

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def has_twins(self) -> bool:
        """Whether a mark stands on more than one row: a key that is none, or two keys with one hash."""
        return bool((self.keys[1:] == self.keys[:-1]).any())


def marks_in_blocks(reader: Reader, spec: TableSpec, blocks: Sequence[Block], *, timeout: float) -> list[Marks]:
    """Mark and hash of every row of these blocks, in one statement."""
    parts = [_marks_query(spec, number, block) for number, block in enumerate(blocks)]
    found = {row[0]: row[1:] for row in reader.rows(sql.SQL(" UNION ALL ").join(parts), timeout=timeout, by_pages=True)}
    return [sorted_marks(*(found[number][at] or b"" for at in (0, 1))) for number in range(len(blocks))]


def _marks_query(spec: TableSpec, number: int, block: Block) -> sql.Composed:
    # Both aggregates take the rows in the same order, whichever it is.
    return sql.SQL(
        "(SELECT {number}, string_agg(int8send({mark}), ''::bytea), string_agg(int8send({hash}), ''::bytea)"
        " FROM {source}{where})"
    ).format(
        number=sql.Literal(number),
        mark=_mark(spec),
        hash=row_hash(spec),
        source=source(spec),
        where=where(spec, *in_block(spec, block)),
    )


def sorted_marks(keys: bytes, hashes: bytes) -> Marks:
    """What the node packed, as arrays."""
    import numpy as np

    mine, theirs = np.frombuffer(keys, ">i8").astype("i8"), np.frombuffer(hashes, ">i8").astype("i8")
    if len(mine) > 1 and not (mine[1:] > mine[:-1]).all():
        order = np.argsort(mine, kind="stable")
        mine, theirs = mine[order], theirs[order]
    return Marks(mine, theirs)


def differing_marks(sides: Sequence[Marks]) -> Any:
    """The marks of all keys whose rows are not the same on all sides; no side has twins."""
    import numpy as np

    first, *others = sides
    found = [_differing(first, other) for other in others]
    return np.unique(np.concatenate(found))


def _differing(one: Marks, other: Marks) -> Any:
    import numpy as np

    if len(one) == len(other) and (one.keys == other.keys).all():
        return one.keys[one.hashes != other.hashes]
    common, mine, theirs = np.intersect1d(one.keys, other.keys, assume_unique=True, return_indices=True)
    changed = common[one.hashes[mine] != other.hashes[theirs]]
    return np.concatenate([changed, np.setxor1d(one.keys, other.keys, assume_unique=True)])


def is_whole_number(spec: TableSpec) -> bool:
    """Whether the mark of a key is the key."""
    return len(spec.key) == 1 and spec.key[0].order == "type" and type_of(spec.key[0].column).integer_bytes > 0


def largest(spec: TableSpec) -> int:
    """The largest whole number that the key can be."""
    return (1 << (8 * type_of(spec.key[0].column).integer_bytes - 1)) - 1


def hashes_of(side: Marks, marks: Any) -> list[int | None]:
    """The hash of the row with each of these marks, None where there is none."""
    import numpy as np

    if not len(side):
        return [None] * len(marks)
    at = np.minimum(np.searchsorted(side.keys, marks), len(side) - 1)
    hashes: list[int | None] = side.hashes[at].tolist()
    for absent in np.flatnonzero(side.keys[at] != marks).tolist():
        hashes[absent] = None
    return hashes


def rows_with(
    reader: Reader, spec: TableSpec, block: Block, marks: Sequence[int], *, timeout: float
) -> dict[KeyValues, Row]:
    """The rows with these marks, by key, asked of the node."""
    wanted = sql.SQL("{} = ANY({}::int8[])").format(_mark(spec), sql.Literal("{" + ",".join(map(str, marks)) + "}"))
    return hashes_in_block(reader, spec, block, timeout=timeout, also=[wanted])


def _mark(spec: TableSpec) -> sql.Composable:
    if is_whole_number(spec):
        return sql.SQL("{}::int8").format(ordered(spec.key[0]))
    return row_hash(replace(spec, columns=tuple(part.column for part in spec.key)))
