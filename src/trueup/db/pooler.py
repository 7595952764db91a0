"""Poolers, such as pgbouncer: programs between a client and the server, whose clients share server sessions.

A session of trueup has settings, locks and snapshots. If the server session changes between two transactions, the next
client gets these settings, and a statement of trueup runs without them. A pooler is recognised by what it does: the
process of the server session is not the one that the login named, or it is older than the connection. It is accepted if
it keeps one server session per connection (session mode), and resets or ends it with the connection. That is shown by a
second connection; nothing else about a pooler can be seen by its clients.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from selectors import EVENT_READ, DefaultSelector

from trueup.config.address import describe
from trueup.config.model import Node
from trueup.db.connection import Connection, one_row
from trueup.db.statements import load
from trueup.errors import CheckFailed

# What the second connection runs.
_STATEMENT = "SELECT pg_catalog.pg_backend_pid()"
_RESET = "DISCARD ALL"
# A clock that is adjusted while the connection is opened must not look like a pooler.
_CLOCK_SECONDS = 1.0
# The wait for a free server session, and for the reset after the end of a connection.
_ANSWER_SECONDS = 10.0
_RESET_SECONDS = 2.0
# Another client may use the server session as soon as it is reset.
_ATTEMPTS = 5

# The addresses that were shown to keep sessions: a second connection per session could exhaust the pool.
_shown: set[tuple[str, int, str, str]] = set()


def is_pooled(connection: Connection, began: float) -> bool:
    """Return whether the server session is not the connection's own; `began` is when the connect began (monotonic)."""
    pid, age = one_row(connection.execute(load("trueup.db", "pooler.sql")["session"]))
    # A role that the address sets (options=-crole=…) may not see when its session began.
    is_older = age is not None and age > time.monotonic() - began + _CLOCK_SECONDS
    return bool(pid != connection.info.backend_pid or is_older)


def check_own_session(connection: Connection, node: Node, began: float, open_another: Callable[[], Connection]) -> None:
    """Raise if the connection may share its server session with other clients; change nothing in the session."""
    if not is_pooled(connection, began):
        return
    info = connection.info
    address = (info.host, info.port, info.dbname, info.user)
    if address in _shown:
        return
    if not _keeps_sessions(connection, open_another):
        raise CheckFailed(
            [
                f"{describe(node.conninfo)} is a pooler that does not keep a server session for each connection"
                " (transaction or statement mode, or session mode without a reset): settings of trueup would reach"
                " other clients"
            ],
            cure="use the address of the server itself, or of a pooler in session mode (pgbouncer: pool_mode = session,"
            " server_reset_query = DISCARD ALL); for applications see trueup.connect in docs/switchover.md",
            node=node.name,
        )
    _shown.add(address)


def _keeps_sessions(connection: Connection, open_another: Callable[[], Connection]) -> bool:
    """Return whether the server session of a second connection is its own until it is closed, and is then reset."""
    for _ in range(_ATTEMPTS):
        with open_another() as other:
            pid = _process(other)
            if pid is None or _last_statement(connection, pid) != _STATEMENT:
                return False
        until = time.monotonic() + _RESET_SECONDS
        while (last := _last_statement(connection, pid)) == _STATEMENT and time.monotonic() < until:
            time.sleep(0.02)
        if last is None or last.upper().startswith(_RESET):
            return True
        if last == _STATEMENT:
            return False
    return False


def _process(connection: Connection) -> int | None:
    """Return the process of the server session; None if the pooler has no free one."""
    connection.pgconn.send_query(_STATEMENT.encode())
    with DefaultSelector() as selector:
        selector.register(connection.fileno(), EVENT_READ)
        if not selector.select(_ANSWER_SECONDS):
            return None
    result, value = connection.pgconn.get_result(), None
    while result is not None:
        value = result.get_value(0, 0) or value
        result = connection.pgconn.get_result()
    return None if value is None else int(value)


def _last_statement(connection: Connection, pid: int) -> str | None:
    row = connection.execute(load("trueup.db", "pooler.sql")["last_statement"], {"pid": pid}).fetchone()
    return None if row is None else str(row[0])
