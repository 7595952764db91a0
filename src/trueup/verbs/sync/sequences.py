"""Sequences, exactly: `last_value` and `is_called` of all of them, read and set in one statement each."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from typing import Any

from psycopg import sql

from trueup.db.connection import Cursor
from trueup.verbs.sync.model import Sequence

Values = Mapping[Sequence, tuple[int, bool]]


def read(node: Any, sequences: Many[Sequence]) -> Values:
    """Where the sequences stand. Sequences know no transactions: it is their very present."""
    return told(ask(node, sequences), sequences)


def ask(node: Any, sequences: Many[Sequence]) -> Any:
    """The same, asked; `told` gives the answer."""
    if not sequences:
        return None
    query = sql.SQL(" UNION ALL ").join(
        sql.SQL("SELECT {}, last_value, is_called FROM {}").format(number, sql.Identifier(each.schema, each.name))
        for number, each in enumerate(sequences)
    )
    return node.execute(query)


def told(cursor: Cursor, sequences: Many[Sequence]) -> Values:
    """What the cursor of `ask` says."""
    if cursor is None:
        return {}
    return {sequences[number]: (last, called) for number, last, called in cursor.fetchall()}


def write(node: Any, values: Values) -> None:
    """Set the sequences to just these values."""
    if not values:
        return
    calls = sql.SQL(" UNION ALL ").join(
        sql.SQL("SELECT setval({}::regclass, {}, {})").format(
            sql.Literal(sql.Identifier(each.schema, each.name).as_string(node)), last, called
        )
        for each, (last, called) in values.items()
    )
    node.execute(calls)
