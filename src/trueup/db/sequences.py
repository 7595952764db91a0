"""The values of sequences: `last_value` and `is_called` of all of them, read and set with one statement each."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass

from psycopg import sql

from trueup.db.connection import Connection, Cursor
from trueup.db.names import display_name


@dataclass(frozen=True)
class Sequence:
    """One sequence, and the column that owns it, if any."""

    schema: str
    name: str
    owner: str = ""
    # Type, start, increment, limits, cache and cycle: must be the same on both sides.
    definition: str = ""

    def __str__(self) -> str:
        return display_name(self.schema, self.name)


Values = Mapping[Sequence, tuple[int, bool]]


def read(connection: Connection, sequences: Many[Sequence]) -> Values:
    """Return the current values of the sequences; sequences are not transactional."""
    return values_of(query(connection, sequences), sequences)


def query(connection: Connection, sequences: Many[Sequence]) -> Cursor | None:
    """Send the query for the values, in a pipeline too; `values_of` reads its result."""
    if not sequences:
        return None
    union = sql.SQL(" UNION ALL ").join(
        sql.SQL("SELECT {}, last_value, is_called FROM {}").format(
            number, sql.Identifier(sequence.schema, sequence.name)
        )
        for number, sequence in enumerate(sequences)
    )
    return connection.execute(union)


def values_of(cursor: Cursor | None, sequences: Many[Sequence]) -> Values:
    """Return the values that `query` asked for."""
    if cursor is None:
        return {}
    return {sequences[number]: (last, called) for number, last, called in cursor.fetchall()}


def write(connection: Connection, values: Values) -> None:
    """Set the sequences to exactly these values."""
    if not values:
        return
    calls = sql.SQL(" UNION ALL ").join(
        sql.SQL("SELECT setval({}::regclass, {}, {})").format(
            sql.Literal(sql.Identifier(sequence.schema, sequence.name).as_string(connection)), last, called
        )
        for sequence, (last, called) in values.items()
    )
    connection.execute(calls)
