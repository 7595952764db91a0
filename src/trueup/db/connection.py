"""The type of a session with PostgreSQL, whose rows are plain tuples, and functions for it."""

from __future__ import annotations

from typing import Any, TypeAlias

import psycopg
from psycopg.conninfo import make_conninfo

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"
Cursor: TypeAlias = "psycopg.Cursor[tuple[Any, ...]]"

# Files of this machine; libpq has read them, and the other keywords have their values.
_LOCAL_FILES = ("service", "servicefile", "passfile", "fallback_application_name")


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
