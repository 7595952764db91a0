"""The chain of statements that were issued by `trueup certificate`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass

from trueup.errors import StoreError


@dataclass(frozen=True)
class Issued:
    """A statement: its number in the chain, its hash, and the document as it is in its file."""

    number: int
    id: str
    issued_at: str
    sha256: str
    verdict: str
    tables: str
    document: str


def append(connection: sqlite3.Connection, make: Callable[[Issued | None, str], Issued]) -> Issued:
    """Add a statement to the chain, in the open transaction; `make` gets the last one and the id of the first one."""
    rows = connection.execute("SELECT * FROM statements ORDER BY number DESC LIMIT 1").fetchall()
    first = connection.execute("SELECT id FROM statements ORDER BY number LIMIT 1").fetchall()
    issued = make(_issued(rows[0]) if rows else None, str(first[0][0]) if first else "")
    names = list(Issued.__dataclass_fields__)
    marks = ", ".join(f":{name}" for name in names)
    connection.execute(f"INSERT INTO statements ({', '.join(names)}) VALUES ({marks})", vars(issued))
    return issued


def listed(connection: sqlite3.Connection) -> list[Issued]:
    """Return all statements, the oldest first."""
    return [_issued(row) for row in connection.execute("SELECT * FROM statements ORDER BY number")]


def get(connection: sqlite3.Connection, number: int) -> Issued:
    """Return a statement by its number. Raises StoreError if there is none."""
    rows = connection.execute("SELECT * FROM statements WHERE number = ?", (number,)).fetchall()
    if not rows:
        raise StoreError(f"certificate {number} does not exist", cure="list them with: trueup certificate list")
    return _issued(rows[0])


def _issued(row: sqlite3.Row) -> Issued:
    return Issued(**{name: row[name] for name in Issued.__dataclass_fields__})
