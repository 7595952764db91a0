"""The digest of a block: count and sum of its row hashes, computed by the node in one pass.

Digests add up: a block that takes too long is hashed in pieces, by walking the key index, and the pieces are summed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psycopg import sql

from trueup.db.reader import Reader, timed_out
from trueup.errors import QueryError
from trueup.rows.encode import row_hash
from trueup.rows.keys import Block, KeyValues, chain, in_block, key_texts, order_by, source, where
from trueup.rows.spec import TableSpec

if TYPE_CHECKING:
    from psycopg import sql

# The first step of a walk through a block that ran past its time-out, in rows.
_FIRST_STEP = 20_000
# How many blocks one statement hashes: one round trip for many, and a plan of bounded size.
_BLOCKS_A_STATEMENT = 32


@dataclass(frozen=True)
class Digest:
    """Count and sum of row hashes. Equal digests mean equal rows, whatever their order."""

    count: int
    sum: int

    def __add__(self, other: Digest) -> Digest:
        return Digest(self.count + other.count, self.sum + other.sum)


EMPTY = Digest(0, 0)


def digest(reader: Reader, spec: TableSpec, block: Block, *, timeout: float) -> Digest:
    """The digest of one block; past the time-out it is hashed again piece by piece."""
    try:
        return _digests(reader, spec, [block], timeout)[0]
    except QueryError as error:
        if not timed_out(error) or spec.is_keyless:
            raise
    return _digest_in_pieces(reader, spec, block, timeout)


def digests(reader: Reader, spec: TableSpec, blocks: Sequence[Block], *, timeout: float) -> list[Digest]:
    """The digests of many small blocks, few round trips."""
    found: list[Digest] = []
    for at in range(0, len(blocks), _BLOCKS_A_STATEMENT):
        some = blocks[at : at + _BLOCKS_A_STATEMENT]
        try:
            found += _digests(reader, spec, some, timeout)
        except QueryError as error:
            if not timed_out(error):
                raise
            found += [digest(reader, spec, block, timeout=timeout) for block in some]
    return found


def boundaries(
    reader: Reader, spec: TableSpec, block: Block, *, step: int, steps: int, timeout: float
) -> list[KeyValues]:
    """Every `step`-th key of a block in key order, at most `steps` of them, by walking the key index."""
    query = sql.SQL(
        "SELECT {keys} FROM (SELECT *, row_number() OVER (ORDER BY {order}) AS trueup_row FROM"
        " (SELECT {names} FROM {source}{where} ORDER BY {order} LIMIT {limit}) walk) numbered"
        " WHERE trueup_row % {step} = {first} AND trueup_row > 1 ORDER BY trueup_row"
    )
    names = sql.SQL(", ").join(sql.Identifier(name) for name in spec.key_names)
    composed = query.format(
        keys=key_texts(spec),
        order=order_by(spec),
        names=names,
        source=source(spec),
        where=where(spec, *in_block(spec, block)),
        limit=sql.Literal(step * steps + 1),
        step=sql.Literal(step),
        first=sql.Literal(1 % step),
    )
    return [tuple(row) for row in reader.rows(composed, timeout=timeout)]


def _digests(reader: Reader, spec: TableSpec, blocks: Sequence[Block], timeout: float) -> list[Digest]:
    parts = [digest_query(spec, sql.Literal(at), in_block(spec, block)) for at, block in enumerate(blocks)]
    found = {
        at: Digest(count, int(total))
        for at, count, total in reader.rows(sql.SQL(" UNION ALL ").join(parts), timeout=timeout, by_pages=True)
    }
    return [found[at] for at in range(len(blocks))]


def digest_query(spec: TableSpec, label: sql.Composable, conditions: Sequence[sql.Composable]) -> sql.Composed:
    """One row: label, count and sum of the rows that meet the conditions."""
    return sql.SQL("(SELECT {label}, count(*), coalesce(sum({hash}), 0)::text FROM {source}{where})").format(
        label=label, hash=row_hash(spec), source=source(spec), where=where(spec, *conditions)
    )


def _digest_in_pieces(reader: Reader, spec: TableSpec, block: Block, timeout: float) -> Digest:
    total = EMPTY
    for piece in _pieces(reader, spec, block, timeout):
        total += piece
    return total


def _pieces(reader: Reader, spec: TableSpec, block: Block, timeout: float) -> Iterator[Digest]:
    """Walk through a block; where even a piece takes too long, take smaller steps, down to single rows."""
    step = _FIRST_STEP
    rest = block
    while True:
        try:
            edge = boundaries(reader, spec, rest, step=step, steps=1, timeout=timeout)
            if edge and edge[0] == rest.start:
                # More rows of one key than a step (the key is not unique): they cannot be taken apart.
                edge = []
            piece = chain(edge, within=rest)[0]
            yield _digests(reader, spec, [piece], timeout)[0]
        except QueryError as error:
            if not timed_out(error) or step == 1:
                raise
            step = max(1, step // 8)
            continue
        if not edge:
            return
        rest = Block(edge[0], rest.end)
