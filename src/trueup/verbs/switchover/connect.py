"""For applications: a connection that follows the pointer, `trueup.connect(pointer)`.

Every transaction first takes the shared lock and reads the pointer. During the pause of a switchover it waits for the
lock; afterwards it continues in the database in use. The application sees a delay, and no error.

Nothing of a session is used between two transactions, so an application may be behind a pooler in transaction mode.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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

    Behind a pooler no statement is prepared, unless `prepare_threshold` is passed, and the address of the other
    database must be one for applications: from `nodes`, a list of both, or --first-address and --second-address.
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
        # Whether the connection leads to a pooler, once a transaction has begun.
        self._is_pooled: bool | None = None

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
                entry = self._begin(self._connected(), begin)
                if entry.state != "use_next":
                    return entry.connection
                entry.connection.rollback()
                if self._follow(entry):
                    continue
                text = f"{self._name} and {entry.next_name} each say that the other database is in use"
                problem = NodeError(text, node=self._name)
            except psycopg.Error as error:
                problem = self._retryable(error)
            except BaseException:
                self._reset()
                raise
            if time.monotonic() > until:
                raise problem
            time.sleep(delay)
            delay = min(delay * 2, _LONGEST_DELAY)

    def _follow(self, entry: Entry) -> bool:
        """Connect to the next database; return False if its pointer leads back and it cannot be opened either."""
        *others, last = self._addresses(entry)
        for address in (*others, last):
            self.close()
            try:
                self._connection = self._open(entry.next_name, address)
            except psycopg.OperationalError:
                if address is last:
                    raise
                continue
            state = self._begin(self._connection, "BEGIN").state
            self._connection.rollback()
            # If it is not opened now, the next attempt begins here: this database may have decided meanwhile.
            if state != "use_next" or (entry.token is not None and self._open_database(entry.token)):
                return True
        return False

    def _begin(self, connection: Connection, begin: str) -> Entry:
        """Begin a transaction and read the pointer; notice a pooler in the first one of a connection."""
        entry = _read_pointer(connection, begin, self._sync)
        if self._is_pooled is None:
            self._is_pooled = entry.process != connection.info.backend_pid
            if self._is_pooled and "prepare_threshold" not in self._keywords:
                # The next transaction may have another server session, which does not know the statement.
                connection.prepare_threshold = None
            # Raised now rather than by a switchover.
            self._addresses(entry)
        return entry

    def _addresses(self, entry: Entry) -> list[str]:
        """Return the addresses of the next database: from `nodes`, else the other ones of the list and the pointer."""
        if entry.next_name in self._nodes:
            return [self._nodes[entry.next_name]]
        addresses = [address for address in self._pointers if address != self._address]
        # The address that trueup itself uses is that of the server: it would lead around the pooler.
        if entry.is_given or not self._is_pooled:
            addresses.append(self._inherited(entry.next_address))
        if not addresses:
            self.close()
            raise ConfigError(
                f"{Node(self._name, self._address).describe()} is a pooler, and no address of {entry.next_name} for"
                " applications is known: the one in the pointer leads around the pooler",
                cure=f"pass nodes={{{entry.next_name!r}: ...}} or the addresses of both databases, or set it: trueup"
                " switchover prepare --first-address, --second-address",
            )
        return addresses

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
        self._name, self._address, self._is_pooled = name, address, None
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
        self._reset(keep=not is_lost(error))
        if state in _NO_POINTER:
            raise ConfigError(
                f"{Node(self._name, self._address).describe()} has no pointer of the sync {self._sync}",
                cure="run trueup switchover prepare; if the switchover is finished, connect to the new database",
            ) from None
        if "statement pooling" in problem.message:
            # pgbouncer reports this as a lost connection.
            raise ConfigError(problem.message, cure="pool transactions: pool_mode = transaction") from None
        if state != "40001" and not is_lost(error):
            raise problem from None
        return problem

    def _reset(self, *, keep: bool = True) -> None:
        """End a transaction that could not begin, for example because of a time-out; if that fails, the session."""
        try:
            if keep and self._connection is not None:
                self._connection.rollback()
                return
        except psycopg.Error:
            pass
        self.close()


@dataclass(frozen=True)
class Entry:
    """The begin of a transaction: the pointer of its database, and the process of the server session."""

    connection: Connection
    state: str
    next_name: str
    next_address: str
    token: str | None
    # Whether the address was given for applications.
    is_given: bool
    process: int


def _read_pointer(connection: Connection, begin: str, sync: str) -> Entry:
    """Begin a transaction, take the shared lock and read the pointer, in one round trip."""
    # Several statements in one message cannot have parameters.
    query: sql.Composed = sql.SQL(
        f"{begin}; SELECT state, next_name, next_address, token, next_given, pg_catalog.pg_backend_pid()"
        " FROM trueup_app.switchover_enter({})"
    ).format(sql.Literal(sync))
    cursor = connection.execute(query)
    while cursor.nextset():
        pass
    row = cursor.fetchone()
    assert row is not None
    return Entry(connection, *row)
