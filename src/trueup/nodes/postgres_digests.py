"""The digests of a statement, which come as one row of arrays: with many small blocks, a row per block takes longer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trueup.nodes.block_digests import BlockDigests

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# The binary form of an array: its dimensions and their size in 5 numbers of 4 bytes, then length and bytes of each.
_HEAD = 20
# A sum of 64 bits overflows, so both halves are added; the lower one without its sign, moved into the range of int4.
_HALF = 2**31
DIGESTS = (
    "SELECT coalesce(sum(without_key), 0)::int8, array_send(array_agg(block)), array_send(array_agg(rows)),"
    " array_send(array_agg(s0)), array_send(array_agg(s1)), array_send(array_agg(s2)), array_send(array_agg(s3))"
    " FROM (SELECT {block} AS block, count(*) AS rows, {without_key} AS without_key,"
    f" sum((high >> 32)::int4) AS s0, sum(((high & {2**32 - 1}) - {_HALF})::int4) AS s1,"
    f" sum((low >> 32)::int4) AS s2, sum(((low & {2**32 - 1}) - {_HALF})::int4) AS s3"
    " FROM {rows} rows GROUP BY 1) blocks"
)


def digests_of_arrays(arrays: Sequence[bytes | None]) -> BlockDigests:
    """Return the digests: numbers of blocks, rows, and the sums of the upper and lower 32 bits of both hashes."""
    import numpy as np

    blocks, rows, *sums = (_numbers(array, 4 if number == 0 else 8) for number, array in enumerate(arrays))
    high, low = (
        (upper.view(np.uint64) << np.uint64(32)) + (lower + rows * _HALF).view(np.uint64)
        for upper, lower in (sums[:2], sums[2:])
    )
    return BlockDigests.added(blocks, rows, high, low)


def _numbers(array: bytes | None, size: int) -> NDArray[np.int64]:
    import numpy as np

    if array is None:
        return np.empty(0, np.int64)
    stored = np.frombuffer(array, [("", ">i4"), ("value", f">i{size}")], offset=_HEAD)
    found: NDArray[np.int64] = stored["value"].astype(np.int64)
    return found
