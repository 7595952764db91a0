"""Write under a replication origin: subscriptions with `origin = none` do not get what is written.

A session sets up an origin, and its changes carry the origin in the log; one session at a time can use an origin. The
names are few and fixed, so an origin that a killed process left is used, and dropped, by the next one.

The origin is set up and reset inside the transaction that writes. A session that keeps its origin is dangerous: a
pooler may hand it to an application, whose changes would then not be replicated (DISCARD ALL does not reset it). The
server filters each change by the origin that it was written with, so the commit itself needs none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import psycopg
from psycopg import errors

from trueup.db.commit import confirmed_transaction
from trueup.db.connection import Connection
from trueup.errors import QueryError

# Functions that the role must be allowed to call.
FUNCTIONS = (
    "pg_replication_origin_create(text)",
    "pg_replication_origin_session_setup(text)",
    "pg_replication_origin_session_reset()",
    "pg_replication_origin_drop(text)",
)
# Origins belong to the server, not to a database. One per repair that writes at the same time.
_NAMES = ("trueup_repair", *(f"trueup_repair_{number}" for number in range(2, 9)))


@contextmanager
def origin_transaction(connection: Connection) -> Iterator[None]:
    """Run the block in a `confirmed_transaction` under a replication origin, which is dropped afterwards."""
    with ExitStack() as stack:
        _begin_with_origin(connection, stack)
        try:
            # A savepoint, because the origin cannot be reset in a failed transaction.
            with connection.transaction():
                yield
                # Deferred triggers belong to what is written.
                connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        except BaseException:
            with suppress(psycopg.Error):
                _reset(connection)
            raise
        _reset(connection)


def _begin_with_origin(connection: Connection, stack: ExitStack) -> None:
    """Begin a transaction, and set up an origin that no other session uses; the stack ends and drops both."""
    try:
        for name in _NAMES:
            # In a transaction of its own: after a rollback, the server would keep the state of an unnamed origin.
            with suppress(errors.UniqueViolation):
                connection.execute("SELECT pg_replication_origin_create(%s)", [name])
            stack.callback(_drop, connection, name)
            with ExitStack() as attempt:
                attempt.enter_context(confirmed_transaction(connection))
                # Used by another session, or dropped by it a moment ago.
                with suppress(errors.ObjectInUse, errors.UndefinedObject), connection.transaction():
                    connection.execute("SELECT pg_replication_origin_session_setup(%s)", [name])
                    stack.push(attempt.pop_all())
                    return
    except errors.ConfigurationLimitExceeded as error:
        raise QueryError(
            f"no replication origin can be used: {error.diag.message_primary}",
            sqlstate=error.sqlstate or "",
            cure="raise max_active_replication_origins (max_replication_slots before PostgreSQL 18), or write without"
            " an origin: --replicate all",
        ) from None
    raise QueryError(
        f"other sessions use all of the {len(_NAMES)} replication origins of repairs",
        cure="run the command again when the other repairs have ended",
    )


def _reset(connection: Connection) -> None:
    try:
        connection.execute("SELECT pg_replication_origin_session_reset()")
    except psycopg.Error:
        # The session must not be used again: it may still have the origin.
        connection.close()
        raise


def _drop(connection: Connection, name: str) -> None:
    """Drop an origin, unless another session uses it or has dropped it."""
    with suppress(psycopg.Error):
        connection.execute("SELECT pg_replication_origin_drop(%s)", [name])
