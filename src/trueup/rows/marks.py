"""The rows of a block as pairs of 64-bit numbers, key mark and row hash, which are compared as arrays.

The node packs them into two long values, so that the driver and the protocol do not handle single rows. The mark of an
integer key is the key itself. The mark of any other key is a hash of it; `rows_with` reads the keys of given marks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from psycopg import sql

from trueup.db.reader import Reader
from trueup.rows.encode import row_hash
from trueup.rows.fetch import Row, hashes_in_block
from trueup.rows.keys import Block, KeyValues, in_block, ordered, source, where
from trueup.rows.spec import TableSpec
from trueup.rows.types import type_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class Marks:
    """The rows of one side, sorted by mark: two NumPy arrays of 64-bit integers of the same length."""

    keys: Int64s
    hashes: Int64s

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def has_twins(self) -> bool:
        """Whether several rows have the same mark: the key is not unique, or two keys have the same hash."""
        return bool((self.keys[1:] == self.keys[:-1]).any())


def marks_in_blocks(reader: Reader, spec: TableSpec, blocks: Sequence[Block], *, timeout: float) -> list[Marks]:
    """Return mark and hash of every row of these blocks, with one statement."""
    parts = [_marks_query(spec, number, block) for number, block in enumerate(blocks)]
    rows = reader.rows(sql.SQL(" UNION ALL ").join(parts), timeout=timeout, scan="pages")
    packed = {number: (keys or b"", hashes or b"") for number, keys, hashes in rows}
    return [sorted_marks(*packed[number]) for number in range(len(blocks))]


def _marks_query(spec: TableSpec, number: int, block: Block) -> sql.Composed:
    # Both aggregates get the rows in the same order.
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
    """Return the arrays of what the node packed, sorted by mark."""
    import numpy as np

    key_marks, row_hashes = (np.frombuffer(data, ">i8").astype("i8") for data in (keys, hashes))
    if len(key_marks) > 1 and not (key_marks[1:] > key_marks[:-1]).all():
        order = np.argsort(key_marks, kind="stable")
        key_marks, row_hashes = key_marks[order], row_hashes[order]
    return Marks(key_marks, row_hashes)


def differing_marks(sides: Sequence[Marks]) -> Int64s:
    """Return the marks of all keys whose rows are not the same on all sides; no side may have twins."""
    import numpy as np

    first, *others = sides
    return np.unique(np.concatenate([_differing(first, other) for other in others]))


def _differing(one: Marks, other: Marks) -> Int64s:
    import numpy as np

    if len(one) == len(other) and (one.keys == other.keys).all():
        changed: Int64s = one.keys[one.hashes != other.hashes]
        return changed
    common, left, right = np.intersect1d(one.keys, other.keys, assume_unique=True, return_indices=True)
    changed = common[one.hashes[left] != other.hashes[right]]
    return np.concatenate([changed, np.setxor1d(one.keys, other.keys, assume_unique=True)])


def is_whole_number(spec: TableSpec) -> bool:
    """Return whether the key is one integer column, so that its mark is the key itself."""
    return len(spec.key) == 1 and spec.key[0].order == "type" and type_of(spec.key[0].column).integer_bytes > 0


def largest(spec: TableSpec) -> int:
    """Return the largest value of an integer key."""
    return (1 << (8 * type_of(spec.key[0].column).integer_bytes - 1)) - 1


def hashes_of(side: Marks, marks: Int64s) -> list[int | None]:
    """Return the row hash per mark, or None if the side has no such row."""
    import numpy as np

    if not len(side):
        return [None] * len(marks)
    places = np.minimum(np.searchsorted(side.keys, marks), len(side) - 1)
    hashes: list[int | None] = side.hashes[places].tolist()
    for absent in np.flatnonzero(side.keys[places] != marks).tolist():
        hashes[absent] = None
    return hashes


def rows_with(
    reader: Reader, spec: TableSpec, block: Block, marks: Sequence[int], *, timeout: float
) -> dict[KeyValues, Row]:
    """Read the rows with these marks from the node and return them by key."""
    condition = sql.SQL("{} = ANY({}::int8[])").format(_mark(spec), sql.Literal("{" + ",".join(map(str, marks)) + "}"))
    return hashes_in_block(reader, spec, block, timeout=timeout, also=[condition])


def _mark(spec: TableSpec) -> sql.Composable:
    if is_whole_number(spec):
        return sql.SQL("{}::int8").format(ordered(spec.key[0]))
    return row_hash(replace(spec, columns=tuple(part.column for part in spec.key)))
