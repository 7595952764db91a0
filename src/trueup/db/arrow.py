"""Rows as a stream of Arrow batches: one pinned session through ADBC, for one statement.

ADBC reads with COPY in binary, so a statement may only select what it reads faithfully: integers, floats, booleans,
text and bytes, and arrays of them. Everything else is for the statement to cast.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trueup.db.node import PINNED, WISHED, error_from_text
from trueup.db.snapshot import GONE
from trueup.errors import CheckFailed, QueryError, TrueupError

if TYPE_CHECKING:
    import pyarrow as pa

    from trueup.config.model import Node

# Where ADBC quotes the server: "[libpq] ...: ERROR:  division by zero".
_SAID = r"(?P<severity>ERROR|FATAL|PANIC):\s+(?P<text>[^\n]*)"


@dataclass(frozen=True)
class View:
    """The moment that a stream sees: a snapshot to join, and how to tell that it still shows the table."""

    snapshot: str
    # Takes the lock that any reader takes; after it, nobody can rewrite the table.
    lock: str
    # Counts the files that were replaced since the snapshot: by TRUNCATE, which no snapshot can look behind.
    replaced: str


def stream(node: Node, query: str, *, view: View | None, table: str, block: str, batch_bytes: int) -> Iterator[Any]:
    """The Arrow batches of a query, as they arrive; an error in the middle is raised, never an early end."""
    with _session(node, table, block) as connection, connection.cursor() as cursor:
        cursor.executescript("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        if view is not None:
            _join(cursor, node, view, table)
        cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(batch_bytes)})
        cursor.execute(query)
        batches: pa.RecordBatchReader = cursor.fetch_record_batch()
        with batches:
            yield from batches


@contextmanager
def _session(node: Node, table: str, block: str) -> Iterator[Any]:
    try:
        from adbc_driver_postgresql import dbapi
    except ImportError as error:
        raise CheckFailed(
            [f"the Arrow driver for PostgreSQL cannot be loaded: {error}"],
            cure="pip install adbc-driver-postgresql, with the Python of the Spark workers",
        ) from None
    try:
        with dbapi.connect(node.conninfo, autocommit=True) as connection:
            _pin(connection)
            yield connection
    except TrueupError:
        raise
    except Exception as error:
        raise _named(error, node, table, block) from None


def _pin(connection: Any) -> None:
    with connection.cursor() as cursor:
        settings = (*PINNED, "SET default_transaction_read_only = on", "SET statement_timeout = 0")
        cursor.executescript("; ".join(settings))
        for wish in WISHED:
            with suppress(Exception):
                cursor.executescript(wish)


def _join(cursor: Any, node: Node, view: View, table: str) -> None:
    try:
        cursor.executescript(f"SET TRANSACTION SNAPSHOT '{view.snapshot}'")
    except Exception as error:
        raise gone(view.snapshot, _named(error, node, table, "")) from None
    cursor.execute(view.lock)
    cursor.fetchall()
    cursor.execute(view.replaced)
    check_replaced(cursor.fetchone(), node, table)


def gone(snapshot: str, error: TrueupError) -> TrueupError:
    """The error of a snapshot that cannot be joined; a lost connection stays one."""
    if not isinstance(error, QueryError):
        return error
    return QueryError(
        f"the snapshot {snapshot} cannot be joined: {error.message}",
        sqlstate=error.sqlstate,
        cure=GONE,
        node=error.node,
        table=error.table,
    )


def check_replaced(answer: Any, node: Node, table: str) -> None:
    """Raise if the files of the table were replaced after the snapshot: its rows would seem to be gone."""
    if answer[0]:
        raise CheckFailed(
            ["the table was truncated or rewritten after the snapshot was taken"],
            cure="take a new snapshot",
            node=node.name,
            table=table,
        )


def _named(error: Exception, node: Node, table: str, block: str) -> TrueupError:
    state = getattr(error, "sqlstate", None) or ""
    said = re.search(_SAID, str(error))
    # ADBC adds the query, which is long and holds the user's values.
    text = said["text"] if said else str(error).partition("Query was:")[0].strip() or type(error).__name__
    lost = said["severity"] != "ERROR" if said else not state
    return error_from_text(text, state, node, lost=lost, table=table, block=block or None)
