"""For applications: a connection that follows the pointer, `trueup.connect(pointer=…)`.

Every transaction first takes the shared lock and asks where to go. During the pause of a switchover it waits there;
afterwards it goes on in the right database. The application sees a wait, and no error.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import conninfo, sql

from trueup.config.model import Node
from trueup.db.connection import Connection
from trueup.db.node import error_from_server, is_lost
from trueup.errors import ConfigError, NodeError, TrueupError

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql

    Connection = Connection

_FIRST_NAP = 0.002
_LONGEST_NAP = 0.25
# Of the pointer's own address, what leads elsewhere with another host; a password is not sent to whom a row names.
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
    """A connection to the database in use, now and after a switchover.

    `pointer` is the address of the database that the sync began with, or of both. The address of the other one comes
    from `nodes` (name -> address), else from the pointer, without user and password: then `keywords`, which go to
    psycopg for both (`password="…"`), or libpq's own ways (PGPASSWORD, ~/.pgpass) give them. `wait` is how many seconds
    a transaction waits for its turn before it is an error.
    """
    return Followed([pointer] if isinstance(pointer, str) else list(pointer), sync, dict(nodes or {}), wait, keywords)


class Followed:
    """The database in use. Threads do not share one; it is a context manager that closes it."""

    def __init__(
        self, pointers: list[str], sync: str, nodes: dict[str, str], wait: float, keywords: dict[str, Any]
    ) -> None:
        if not pointers:
            raise ConfigError("no pointer is given", cure='trueup.connect("postgresql://db1/shop")')
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
        """A transaction in the database in use: committed at the end, rolled back by an error.

        `begin` may say more, such as `BEGIN ISOLATION LEVEL REPEATABLE READ`.
        """
        connection = self._enter(begin)
        try:
            yield connection
        except BaseException:
            with suppress(Exception):
                connection.rollback()
            raise
        connection.commit()

    def execute(self, query: Any, params: Any = None) -> list[tuple[Any, ...]]:
        """One statement in a transaction of its own; gives its rows."""
        with self.transaction() as connection:
            cursor = connection.execute(query, params)
            return cursor.fetchall() if cursor.description else []

    @property
    def address(self) -> str:
        """Where the last transaction was, without a password."""
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
        """Begin a transaction where the pointer leads; between the decision and the opening it looks again."""
        until = time.monotonic() + self._wait
        nap = _FIRST_NAP
        while True:
            problem: TrueupError
            try:
                connection = self._connected()
                state, name, address, token = _ask(connection, begin, self._sync)
                if state != "use_next":
                    return connection
                connection.rollback()
                if self._follow(name, address, token):
                    continue
                problem = NodeError(f"{self._name} and {name} both say that the other one is in use", node=self._name)
            except psycopg.Error as error:
                problem = self._judged(error)
            if time.monotonic() > until:
                raise problem
            time.sleep(nap)
            nap = min(nap * 2, _LONGEST_NAP)

    def _follow(self, name: str, address: str, token: str | None) -> bool:
        """Go to the next database; False where that one sends us back, and cannot be opened either."""
        self.close()
        self._connection = self._open(name, self._nodes.get(name) or self._inherited(address))
        state, *_ = _ask(self._connection, "BEGIN", self._sync)
        self._connection.rollback()
        if state != "use_next":
            return True
        # Where its turn has not come, the next look begins here: this one may be the one that has decided.
        return token is not None and self._opened(token)

    def _opened(self, token: str) -> bool:
        """The decision has been made, and whoever made it has not opened the next database yet: then we do."""
        assert self._connection is not None
        with self._connection.transaction():
            row = self._connection.execute("SELECT trueup.switchover_open(%s, %s)", (self._sync, token)).fetchone()
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
        # Transactions begin where we say so: psycopg's own BEGIN would come before the lock.
        return psycopg.connect(address, **{**self._keywords, "autocommit": True})

    def _inherited(self, address: str) -> str:
        """The address that the pointer names, with all else as in ours."""
        mine = conninfo.conninfo_to_dict(self._pointers[0])
        kept = {key: value for key, value in mine.items() if key not in _NOT_INHERITED}
        return conninfo.make_conninfo(address, **kept)

    def _judged(self, error: psycopg.Error) -> TrueupError:
        """What to do with an error on the way in: try again (return), or tell (raise)."""
        told = error_from_server(error, Node(self._name, self._address))
        state = error.sqlstate or ""
        if state in _NO_POINTER:
            raise ConfigError(
                f"{Node(self._name, self._address).describe()} has no pointer of the sync {self._sync}",
                cure="trueup switchover prepare makes it; where a switchover was finished, connect to the new database",
            ) from None
        if state != "40001" and not is_lost(error):
            raise told from None
        if state != "40001" or self._connection is None:
            self.close()
        else:
            self._connection.rollback()
        return told


def _ask(connection: Connection, begin: str, sync: str) -> tuple[str, str, str, str | None]:
    """Begin, take the shared lock, read the pointer: one message there, one back."""
    # Two statements at once cannot have parameters.
    query: sql.Composed = sql.SQL(f"{begin}; SELECT * FROM trueup.switchover_enter({{}})").format(sql.Literal(sync))
    cursor = connection.execute(query)
    while cursor.nextset():
        pass
    row = cursor.fetchone()
    assert row is not None
    return row[0], row[1], row[2], row[3]
