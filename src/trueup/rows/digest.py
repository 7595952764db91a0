"""The digest of a block: count and sum of its row hashes, computed by the node in one pass.

Digests can be added: a block that exceeds the timeout is hashed in pieces along the key index, which are then summed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from psycopg import RawCursor, sql

from trueup.db.bound import bind
from trueup.db.connection import Connection, one_row
from trueup.db.reader import Reader, timed_out
from trueup.errors import QueryError
from trueup.rows.encode import row_hash
from trueup.rows.keys import Block, KeyValues, chain, in_block, key_texts, order_by, source, where
from trueup.rows.spec import TableSpec

# Rows of the first piece of a block that exceeded the timeout.
FIRST_STEP = 20_000
# Blocks per statement: fewer round trips, with a plan of limited size.
_BLOCKS_PER_STATEMENT = 32


@dataclass(frozen=True)
class Digest:
    """Count and sum of row hashes. Equal digests mean equal rows, in any order."""

    count: int
    sum: int

    def __add__(self, other: Digest) -> Digest:
        return Digest(self.count + other.count, self.sum + other.sum)


EMPTY = Digest(0, 0)


def digest(reader: Reader, spec: TableSpec, block: Block, *, timeout: float) -> Digest:
    """Return the digest of one block; if the statement exceeds the timeout, hash the block in pieces."""
    try:
        return _digests(reader, spec, [block], timeout)[0]
    except QueryError as error:
        if not timed_out(error) or spec.is_keyless:
            raise
    return digest_in_pieces(reader, spec, block, timeout)


def digests(reader: Reader, spec: TableSpec, blocks: Sequence[Block], *, timeout: float) -> list[Digest]:
    """Return the digests of many small blocks with few round trips."""
    results: list[Digest] = []
    for start in range(0, len(blocks), _BLOCKS_PER_STATEMENT):
        batch = blocks[start : start + _BLOCKS_PER_STATEMENT]
        try:
            results += _digests(reader, spec, batch, timeout)
        except QueryError as error:
            if not timed_out(error):
                raise
            results += [digest(reader, spec, block, timeout=timeout) for block in batch]
    return results


def boundaries(
    reader: Reader, spec: TableSpec, block: Block, *, step: int, steps: int, timeout: float
) -> list[KeyValues]:
    """Return every `step`-th key of a block in key order, at most `steps` keys."""
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
    return [tuple(row) for row in reader.rows(composed, timeout=timeout, scan="ordered")]


def _digests(reader: Reader, spec: TableSpec, blocks: Sequence[Block], timeout: float) -> list[Digest]:
    parts = [digest_query(spec, sql.Literal(number), in_block(spec, block)) for number, block in enumerate(blocks)]
    rows = reader.rows(sql.SQL(" UNION ALL ").join(parts), timeout=timeout, scan="pages")
    results = {number: Digest(count, int(total)) for number, count, total in rows}
    return [results[number] for number in range(len(blocks))]


def digest_query(spec: TableSpec, label: sql.Composable, conditions: Sequence[sql.Composable]) -> sql.Composed:
    """Return a query for one row: the label, and count and sum of the row hashes that meet the conditions."""
    return sql.SQL("(SELECT {label}, count(*), coalesce(sum({hash}), 0)::text FROM {source}{where})").format(
        label=label, hash=row_hash(spec), source=source(spec), where=where(spec, *conditions)
    )


def digest_of(connection: Connection, query: sql.Composed) -> Digest:
    """Return the digest that a `digest_query` finds, on a session of its own."""
    statement, values = bind(query, connection)
    with RawCursor(connection) as cursor:
        _, count, total = one_row(cursor.execute(statement, values))
    return Digest(count, int(total))


def digest_in_pieces(reader: Reader, spec: TableSpec, block: Block, timeout: float) -> Digest:
    total = EMPTY
    for piece in _pieces(reader, spec, block, timeout):
        total += piece
    return total


def _pieces(reader: Reader, spec: TableSpec, block: Block, timeout: float) -> Iterator[Digest]:
    """Yield the digests of the pieces of a block; make pieces smaller while they exceed the timeout, down to 1 row."""
    step = FIRST_STEP
    rest = block
    while True:
        try:
            edge = boundaries(reader, spec, rest, step=step, steps=1, timeout=timeout)
            if edge and edge[0] == rest.start:
                # More rows with the same key than the step (the key is not unique): they cannot be split.
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
