"""The type of a session with PostgreSQL, whose rows are plain tuples, the sessions with nodes, and functions."""

from __future__ import annotations

import time
from typing import Any, NoReturn, TypeAlias, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.conninfo import make_conninfo

from trueup.config.model import Node

T = TypeVar("T")

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"
Cursor: TypeAlias = "psycopg.Cursor[tuple[Any, ...]]"

# Files of this machine; libpq has read them, and the other keywords have their values.
_LOCAL_FILES = ("service", "servicefile", "passfile", "fallback_application_name")


class NodeConnection(psycopg.Connection[tuple[Any, ...]]):
    """A session with a node, whose errors know the node: see `node_of`.

    A session that was lost keeps the first error. The driver would only report that the connection is closed.
    """

    # The attribute of an error that has the node.
    MARK = "trueup_node"
    node: Node | None = None
    # Since when a thread waits for the server, and why the session was cut: see `db.alive`.
    waits_since: float | None = None
    cut_because = ""
    _loss: psycopg.Error | None = None

    def wait(self, gen: PQGen[T], *arguments: Any, **named: Any) -> T:
        """Run one step of the protocol: all statements and commits use this, and each row of a copy."""
        self.waits_since = time.monotonic()
        try:
            return super().wait(gen, *arguments, **named)
        except psycopg.Error as error:
            self._raise_marked(error)
        finally:
            self.waits_since = None

    def cursor(self, *arguments: Any, **named: Any) -> Any:
        """Return a cursor; raise the first error of a session that was lost."""
        try:
            return super().cursor(*arguments, **named)
        except psycopg.Error as error:
            self._raise_marked(error)

    def _raise_marked(self, error: psycopg.Error) -> NoReturn:
        if self.cut_because and not error.sqlstate:
            error = psycopg.OperationalError(self.cut_because)
        first = self._loss or error
        if self.broken:
            self._loss = first
        # An error of the server, such as a violated constraint, is never replaced.
        marked = error if error.sqlstate else first
        marked.__dict__[self.MARK] = self.node
        raise marked from None


def marked(error: psycopg.Error, connection: Connection) -> psycopg.Error:
    """Return an error that the driver did not raise itself, with the node of the session: see `node_of`."""
    error.__dict__[NodeConnection.MARK] = getattr(connection, "node", None)
    return error


def node_of(error: BaseException) -> Node | None:
    """Return the node whose session raised an error of the driver; None if it is not known."""
    return error.__dict__.get(NodeConnection.MARK)


def one_row(cursor: Cursor) -> tuple[Any, ...]:
    """Return the first row of a statement that always returns one."""
    row = cursor.fetchone()
    if row is None:
        raise LookupError("a statement that always returns a row returned none")
    return row


def one_value(cursor: Cursor) -> Any:
    """Return the first column of the first row of a statement that always returns one."""
    return one_row(cursor)[0]


def same_server(conninfo: str, connection: Connection) -> str:
    """Return a conninfo string for the server of an open connection, if `conninfo` names several servers."""
    info = connection.info
    keywords = {"host": info.host, "port": str(info.port)}
    if info.hostaddr and not info.host.startswith("/"):
        keywords["hostaddr"] = info.hostaddr
    return make_conninfo(conninfo, **keywords)


def address_of(connection: Connection, *, application: str = "") -> str:
    """Return a conninfo string that opens the same connection from any machine, with the password.

    An executor does not have the driver's PG* variables, password file and service file; the values that libpq took
    from them are part of the result.
    """
    keywords = {
        option.keyword.decode(): option.val.decode()
        for option in connection.pgconn.info
        if option.val is not None and option.val != option.compiled and option.keyword.decode() not in _LOCAL_FILES
    }
    if connection.info.password:
        keywords["password"] = connection.info.password
    if application:
        keywords["application_name"] = application[:63]
    return make_conninfo("", **keywords)
