"""Read the rows of one statement as Arrow batches, with a session of the ADBC driver.

ADBC reads with binary COPY, which is exact for integers, floats, booleans, text, bytea and arrays of these. The
statement must cast all other types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from trueup.config.model import Node
from trueup.db.node import ALLOW_VIEWS, OPTIONAL, PINNED, error_from_text
from trueup.db.snapshot import SNAPSHOT_CURE
from trueup.errors import CheckFailed, QueryError, TrueupError

if TYPE_CHECKING:
    import pyarrow as pa

# The message of the server within an error of ADBC: "[libpq] ...: ERROR:  division by zero".
_SERVER_MESSAGE = r"(?P<severity>ERROR|FATAL|PANIC):\s+(?P<text>[^\n]*)"


@dataclass(frozen=True)
class View:
    """The snapshot that a stream joins, and the statements that check whether it still shows the table."""

    snapshot: str
    # Takes an ACCESS SHARE lock, after which no session can rewrite the table.
    lock: str
    # Counts the files that were replaced since the snapshot, for example by TRUNCATE: their old rows are gone.
    replaced: str


def stream(
    node: Node,
    query: str,
    *,
    view: View | None,
    table: str,
    block: str,
    batch_bytes: int,
    allow_views: bool = False,
) -> Iterator[Any]:
    """Yield the Arrow batches of a query; an error after the first batch is raised too.

    `allow_views`: the query reads a view that the user named.
    """
    with _session(node, table, block) as connection, connection.cursor() as cursor:
        if allow_views:
            with suppress(Exception):
                cursor.executescript(ALLOW_VIEWS)
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
            cure="install adbc-driver-postgresql in the Python environment of the Spark workers",
        ) from None
    try:
        with _connected(dbapi, node.conninfo) as connection:
            _pin(connection)
            yield connection
    except TrueupError:
        raise
    except Exception as error:
        raise _error(error, node, table, block) from None


def _connected(dbapi: Any, conninfo: str) -> Any:
    connection = dbapi.connect(conninfo, autocommit=True)
    try:
        if _knows_types(connection):
            return connection
    except BaseException:
        connection.close()
        raise
    # One session at a time: their number is limited.
    connection.close()
    return dbapi.connect(_unquoted(conninfo), autocommit=True)


def _knows_types(connection: Any) -> bool:
    """Return whether the driver decodes integers: it returns bytes of types that it has not found by their name."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 0::int8")
        return bool(cursor.fetchone()[0] == 0)


def _unquoted(conninfo: str) -> str:
    """Return an address whose sessions do not quote all names: the driver reads them when it connects."""
    options = conninfo_to_dict(conninfo).get("options") or ""
    return make_conninfo(conninfo, options=f"{options} -c quote_all_identifiers=off")


def _pin(connection: Any) -> None:
    with connection.cursor() as cursor:
        settings = (*PINNED, "SET default_transaction_read_only = on", "SET statement_timeout = 0")
        cursor.executescript("; ".join(settings))
        for setting in OPTIONAL:
            with suppress(Exception):
                cursor.executescript(setting)


def _join(cursor: Any, node: Node, view: View, table: str) -> None:
    try:
        cursor.executescript(f"SET TRANSACTION SNAPSHOT '{view.snapshot}'")
    except Exception as error:
        raise snapshot_error(view.snapshot, _error(error, node, table, "")) from None
    cursor.execute(view.lock)
    cursor.fetchall()
    cursor.execute(view.replaced)
    check_replaced(cursor.fetchone()[0], node, table)


def snapshot_error(snapshot: str, error: TrueupError) -> TrueupError:
    """Return the error of a snapshot that cannot be joined; a lost connection keeps its own error."""
    if not isinstance(error, QueryError):
        return error
    return QueryError(
        f"the snapshot {snapshot} cannot be joined: {error.message}",
        sqlstate=error.sqlstate,
        cure=SNAPSHOT_CURE,
        node=error.node,
        table=error.table,
    )


def check_replaced(files: int, node: Node, table: str) -> None:
    """Raise if files of the table were replaced after the snapshot, which would make its rows invisible."""
    if files:
        raise CheckFailed(
            ["the table was truncated or rewritten after the snapshot was taken"],
            cure="take a new snapshot",
            node=node.name,
            table=table,
        )


def _error(error: Exception, node: Node, table: str, block: str) -> TrueupError:
    state = getattr(error, "sqlstate", None) or ""
    message = re.search(_SERVER_MESSAGE, str(error))
    # ADBC appends the query, which is long and contains values of the user.
    text = message["text"] if message else str(error).partition("Query was:")[0].strip() or type(error).__name__
    lost = message["severity"] != "ERROR" if message else not state
    return error_from_text(text, state, node, lost=lost, table=table, block=block or None)
