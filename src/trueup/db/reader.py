"""The sessions that tasks read with: joined to a snapshot, kept for the next task, opened again when lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from psycopg import sql

from trueup.db.connection import Connection
from trueup.db.node import connect, error_from_server, is_lost
from trueup.errors import Interrupted, QueryError, TrueupError

if TYPE_CHECKING:
    import psycopg

    from trueup.config.model import Node

TIMED_OUT = "57014"
T = TypeVar("T")


class TooMuch(TrueupError):
    """An answer is larger than there is room for: ask for less at a time."""


class Reader:
    """One session for reading, in the given snapshot or, without one, each statement on its own."""

    def __init__(self, node: Node, snapshot: str | None, *, application: str, retries: int) -> None:
        self.node = node
        self.snapshot = snapshot
        self.application = application
        self.retries = retries
        self._connection: Connection | None = None
        self._mode = (0.0, False)

    def rows(self, query: sql.Composed, *, timeout: float = 0, by_pages: bool = False) -> list[tuple[Any, ...]]:
        """All rows of a query; a lost connection is tried again, a time-out raises QueryError with 57014.

        `by_pages`: what a range of keys names is read page by page, not row by row, for all of it is wanted.
        """
        return self._tried(lambda: self._rows_once(query, (timeout, by_pages)))

    def lines(self, query: sql.Composed, *, timeout: float = 0, most_bytes: int = 0) -> list[bytes]:
        """All lines of a COPY TO STDOUT; raises TooMuch where they are more bytes than that (0: any number).

        The caller's query holds no text of the user's: COPY goes by the protocol that takes several statements.
        """
        return self._tried(lambda: self._lines_once(query, timeout, most_bytes))

    def _tried(self, ask: Callable[[], T]) -> T:
        attempt = 0
        while True:
            if self.application in _stopped:
                raise Interrupted("the run was stopped", node=self.node.name)
            try:
                return ask()
            except Exception as error:
                self.close()
                attempt += 1
                if not is_lost(error) or attempt > self.retries:
                    raise error_from_server(error, self.node) from None
                # A server that just failed over needs a moment; the wait grows, and is bounded.
                time.sleep(min(0.1 * 2**attempt, 2.0))

    def _rows_once(self, query: sql.Composed, mode: tuple[float, bool]) -> list[tuple[Any, ...]]:
        connection = self._open()
        with connection.cursor() as cursor:
            self._set(cursor, mode)
            # Binary results select the protocol that takes one statement only: no filter can add a second.
            cursor.execute(query, binary=True)
            return cursor.fetchall()

    def _lines_once(self, query: sql.Composed, timeout: float, most_bytes: int) -> list[bytes]:
        connection = self._open()
        found: list[bytes] = []
        size = 0
        with connection.cursor() as cursor:
            self._set(cursor, (timeout, False))
            with cursor.copy(query) as copy:
                for data in copy:
                    found.append(bytes(data))
                    size += len(data)
                    if most_bytes and size > most_bytes:
                        raise TooMuch(f"more than {most_bytes:,} bytes of rows at once", node=self.node.name)
        return found

    def _set(self, cursor: psycopg.Cursor[tuple[object, ...]], mode: tuple[float, bool]) -> None:
        """The time-out and the way to read of the next statement."""
        if mode != self._mode or not self.snapshot:
            timeout, by_pages = mode
            # Outside of our transaction, a filter that calls set_config could have opened the session for writing.
            cursor.execute(
                f"SET statement_timeout = {int(timeout * 1000)}; SET default_transaction_read_only = on;"
                f" SET enable_indexscan = {'off' if by_pages else 'on'}"
            )
            self._mode = mode

    def _open(self) -> Connection:
        if self._connection is None:
            connection = connect(self.node, application=self.application)
            try:
                # Should this process die or be forgotten on a cluster, the server ends the session by itself.
                # One task is one core of the server: how many there are is for the user to say, and helpers take
                # longer to start than they save in a second's work.
                connection.execute(
                    "SET idle_in_transaction_session_timeout = '2min'; SET statement_timeout = 0;"
                    " SET max_parallel_workers_per_gather = 0"
                )
                if self.snapshot:
                    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                    connection.execute(f"SET TRANSACTION SNAPSHOT '{self.snapshot}'")
            except Exception:
                connection.close()
                raise
            self._connection = connection
            self._mode = (0.0, False)
        return self._connection

    def session(self) -> Connection:
        """The session itself, in its snapshot, for what is no query: a COPY. Whoever breaks it closes the reader."""
        if self.application in _stopped:
            raise Interrupted("the run was stopped", node=self.node.name)
        return self._open()

    def warm_up(self) -> None:
        """Open the session, so that the time of the next query is its own."""
        if self._connection is None:
            self.rows(sql.SQL("SELECT 1").format())

    def cancel(self) -> None:
        """End the query that is under way, from another thread."""
        connection = self._connection
        if connection is not None:
            with suppress(Exception):
                connection.cancel_safe(timeout=5)

    def close(self) -> None:
        """End the session; the next query opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def timed_out(error: BaseException) -> bool:
    """Whether a query ran past its time-out."""
    return isinstance(error, QueryError) and error.sqlstate == TIMED_OUT


# Readers at work, so that an interrupted run can end their queries.
_busy: set[Reader] = set()
_stopped: set[str] = set()
_Address = tuple[str, "str | None", str]
_idle: dict[_Address, list[Reader]] = {}
_lock = threading.Lock()


@contextmanager
def borrow(node: Node, snapshot: str | None, *, application: str, retries: int) -> Iterator[Reader]:
    """A reader of this process that nobody else uses now; it goes back for the next task."""
    address = (node.conninfo, snapshot, application)
    with _lock:
        waiting = _idle.get(address)
        reader = waiting.pop() if waiting else None
        # Readers of an earlier run hold old snapshots open; those of another snapshot of this run would add to
        # the connections that a node was promised at most.
        stale = [key for key in _idle if key[2] != application or (key[0] == address[0] and key[1] != snapshot)]
        forgotten = [old for key in stale for old in _idle.pop(key)]
    for old in forgotten:
        old.close()
    if reader is None:
        reader = Reader(node, snapshot, application=application, retries=retries)
    with _lock:
        _busy.add(reader)
    try:
        yield reader
    except BaseException:
        # The state of the transaction is not known after an error: start over next time.
        reader.close()
        raise
    else:
        with _lock:
            _idle.setdefault(address, []).append(reader)
    finally:
        with _lock:
            _busy.discard(reader)


def close_idle() -> None:
    """Close the sessions that wait for the next task in this process."""
    with _lock:
        idle = [reader for readers in _idle.values() for reader in readers]
        _idle.clear()
    for reader in idle:
        reader.close()


def allow(application: str) -> None:
    """Let a run read that was stopped in this process before."""
    with _lock:
        _stopped.discard(application)


def stop_all(application: str) -> None:
    """End a run in this process: cancel the queries still under way, close the idle sessions."""
    with _lock:
        # A cancelled query looks like a time-out, and would be tried again in pieces.
        _stopped.add(application)
        busy = [reader for reader in _busy if reader.application == application]
        idle = [reader for key in [key for key in _idle if key[2] == application] for reader in _idle.pop(key)]
    for reader in busy:
        reader.cancel()
    for reader in idle:
        reader.close()
