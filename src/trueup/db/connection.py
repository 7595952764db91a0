"""The one type of a session with PostgreSQL: rows are plain tuples."""

from __future__ import annotations

from typing import Any, TypeAlias

import psycopg

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"
Cursor: TypeAlias = "psycopg.Cursor[tuple[Any, ...]]"


def one_row(cursor: Cursor) -> tuple[Any, ...]:
    """Return the first row of a statement that always returns one."""
    row = cursor.fetchone()
    if row is None:
        raise LookupError("a statement that always returns a row returned none")
    return row


def one_value(cursor: Cursor) -> Any:
    """Return the first column of the first row of a statement that always returns one."""
    return one_row(cursor)[0]
