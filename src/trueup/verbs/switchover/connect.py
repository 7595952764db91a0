"""For applications: a connection that follows the pointer, `trueup.connect(pointer)`.

Every transaction first takes the shared lock and reads the pointer. During the pause of a switchover it waits for the
lock; afterwards it continues in the database in use. The application sees a delay, and no error.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import conninfo, sql
from psycopg.abc import Params

from trueup.config.model import Node
from trueup.db.connection import Connection
from trueup.db.node import error_from_server, is_lost
from trueup.errors import ConfigError, NodeError, TrueupError

if TYPE_CHECKING:
    from typing_extensions import LiteralString

_FIRST_DELAY = 0.002
_LONGEST_DELAY = 0.25
# Parts of the first address that do not apply to another host; a password is not sent to a host that a row names.
_NOT_INHERITED = ("host", "hostaddr", "port", "dbname", "password", "passfile", "service", "target_session_attrs")
_NO_POINTER = ("42883", "42P01", "3F000", "42704")


def connect(
    pointer: str | Sequence[str],
    *,
    sync: str = "main",
    nodes: Mapping[str, str] | None = None,
    wait: float = 60.0,
    **keywords: Any,
) -> Followed:
    """Return a connection to the database in use, now and after a switchover.

    `pointer` is the address of one of the two databases, or a list of both. The address of the other one comes from
    `nodes` (name -> address), else from the pointer, which has no user and no password: pass them as `keywords` of
    psycopg.connect, which apply to both (`password="…"`), or in PGPASSWORD or ~/.pgpass. A transaction waits at most
    `wait` seconds for a database that is open, and then raises a TrueupError.
    """
    return Followed([pointer] if isinstance(pointer, str) else list(pointer), sync, dict(nodes or {}), wait, keywords)


class Followed:
    """A connection to the database in use: a context manager, for one thread at a time."""

    def __init__(
        self, pointers: list[str], sync: str, nodes: dict[str, str], wait: float, keywords: dict[str, Any]
    ) -> None:
        if not pointers:
            raise ConfigError("no address of a pointer was given", cure='trueup.connect("postgresql://db1/shop")')
        self._pointers = pointers
        self._sync = sync
        self._nodes = nodes
        self._wait = wait
        self._keywords = keywords
        self._connection: Connection | None = None
        self._address = ""
        self._name = "pointer"

    @contextmanager
    def transaction(self, begin: str = "BEGIN") -> Iterator[Connection]:
        """Open a transaction in the database in use; it is committed at the end, and rolled back by an error.

        `begin` is the statement that begins it, such as `BEGIN ISOLATION LEVEL REPEATABLE READ`.
        """
        connection = self._enter(begin)
        try:
            yield connection
        except BaseException:
            with suppress(Exception):
                connection.rollback()
            raise
        connection.commit()

    def execute(
        self, query: LiteralString | bytes | sql.SQL | sql.Composed, params: Params | None = None
    ) -> list[tuple[Any, ...]]:
        """Run one statement in its own transaction, and return its rows."""
        with self.transaction() as connection:
            cursor = connection.execute(query, params)
            return cursor.fetchall() if cursor.description else []

    @property
    def address(self) -> str:
        """The address of the last transaction, without a password."""
        return Node(self._name, self._address).describe() if self._address else ""

    def close(self) -> None:
        """End the session."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()

    def __enter__(self) -> Followed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _enter(self, begin: str) -> Connection:
        """Begin a transaction in the database in use; retry between a decision and the opening."""
        until = time.monotonic() + self._wait
        delay = _FIRST_DELAY
        while True:
            problem: TrueupError
            try:
                connection = self._connected()
                state, name, address, token = _begin(connection, begin, self._sync)
                if state != "use_next":
                    return connection
                connection.rollback()
                if self._follow(name, address, token):
                    continue
                text = f"{self._name} and {name} each say that the other database is in use"
                problem = NodeError(text, node=self._name)
            except psycopg.Error as error:
                problem = self._retryable(error)
            if time.monotonic() > until:
                raise problem
            time.sleep(delay)
            delay = min(delay * 2, _LONGEST_DELAY)

    def _follow(self, name: str, address: str, token: str | None) -> bool:
        """Connect to the next database; return False if its pointer leads back and it cannot be opened either."""
        self.close()
        self._connection = self._open(name, self._nodes.get(name) or self._inherited(address))
        state, *_ = _begin(self._connection, "BEGIN", self._sync)
        self._connection.rollback()
        if state != "use_next":
            return True
        # If it is not opened now, the next attempt begins here: this database may have decided meanwhile.
        return token is not None and self._open_database(token)

    def _open_database(self, token: str) -> bool:
        """Open the database for writes: the switchover has decided, and has not opened it yet."""
        assert self._connection is not None
        with self._connection.transaction():
            row = self._connection.execute("SELECT trueup_app.switchover_open(%s, %s)", (self._sync, token)).fetchone()
        return bool(row and row[0])

    def _connected(self) -> Connection:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        for place, address in enumerate(self._pointers, 1):
            try:
                self._connection = self._open("pointer", address)
            except psycopg.OperationalError:
                if place == len(self._pointers):
                    raise
                continue
            return self._connection
        raise AssertionError("there is at least one pointer")

    def _open(self, name: str, address: str) -> Connection:
        self._name, self._address = name, address
        # Autocommit: a BEGIN of psycopg would come before the lock.
        return psycopg.connect(address, **{**self._keywords, "autocommit": True})

    def _inherited(self, address: str) -> str:
        """Return the address in the pointer, with all other keywords of the first address."""
        first = conninfo.conninfo_to_dict(self._pointers[0])
        kept = {key: value for key, value in first.items() if key not in _NOT_INHERITED}
        return conninfo.make_conninfo(address, **kept)

    def _retryable(self, error: psycopg.Error) -> TrueupError:
        """Return an error after which the caller may try again; raise any other one."""
        problem = error_from_server(error, Node(self._name, self._address))
        state = error.sqlstate or ""
        if state in _NO_POINTER:
            raise ConfigError(
                f"{Node(self._name, self._address).describe()} has no pointer of the sync {self._sync}",
                cure="run trueup switchover prepare; if the switchover is finished, connect to the new database",
            ) from None
        if state != "40001" and not is_lost(error):
            raise problem from None
        if state != "40001" or self._connection is None:
            self.close()
        else:
            self._connection.rollback()
        return problem


def _begin(connection: Connection, begin: str, sync: str) -> tuple[str, str, str, str | None]:
    """Begin a transaction, take the shared lock and read the pointer, in one round trip."""
    # Several statements in one message cannot have parameters.
    query: sql.Composed = sql.SQL(f"{begin}; SELECT * FROM trueup_app.switchover_enter({{}})").format(sql.Literal(sync))
    cursor = connection.execute(query)
    while cursor.nextset():
        pass
    row = cursor.fetchone()
    assert row is not None
    return row[0], row[1], row[2], row[3]
