"""The sessions of tasks, which later tasks reuse. Those that read join a snapshot, and reconnect when lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, TypeVar

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from trueup.config.model import Node
from trueup.db.bound import bind
from trueup.db.connection import Connection, Cursor
from trueup.db.node import connect, error_from_server, is_lost
from trueup.errors import Interrupted, NodeError, QueryError, TrueupError

TIMED_OUT = "57014"
# How a query over a range of keys reads it: "pages": all rows of the range, in the order of the pages. "ordered": the
# first rows in the order of the key, from the entries of its index: for plans only, because an index may lack rows.
# Estimates of a range may be wrong by any factor, so the planner does not choose.
Scan = Literal["any", "pages", "ordered"]
_Mode = tuple[float, Scan]
_DEFAULT_MODE: _Mode = (0.0, "any")
T = TypeVar("T")


class ResultTooLarge(TrueupError):
    """A result exceeds the limit of the caller, which must read fewer rows at a time."""


class SnapshotLost(NodeError):
    """The snapshot of the run has ended with the session of the driver that exported it."""


class Reader:
    """One read-only session; all statements see `snapshot`, or without one each sees the data of its own time."""

    def __init__(self, node: Node, snapshot: str | None, *, application: str, retries: int) -> None:
        self.node = node
        self.snapshot = snapshot
        self.application = application
        self.retries = retries
        self._connection: Connection | None = None
        self._has_joined = False
        self._mode = _DEFAULT_MODE

    def rows(self, query: sql.Composed, *, timeout: float = 0, scan: Scan = "any") -> list[tuple[Any, ...]]:
        """Return all rows of a query; retry when the connection is lost, raise QueryError 57014 on a timeout."""
        return self._with_retries(lambda: self._rows_once(query, (timeout, scan)))

    def lines(self, query: sql.Composed, *, timeout: float = 0, max_bytes: int = 0) -> list[bytes]:
        """Return all lines of a COPY TO STDOUT; raise ResultTooLarge above `max_bytes` (0: no limit).

        The query must not contain text of the user: COPY uses the simple protocol, which accepts several statements.
        """
        return self._with_retries(lambda: self._lines_once(query, timeout, max_bytes))

    def _with_retries(self, read: Callable[[], T]) -> T:
        attempt = 0
        while True:
            if self.application in _stopped:
                raise Interrupted("the run was stopped", node=self.node.name)
            try:
                return read()
            except Exception as error:
                self.close()
                attempt += 1
                if isinstance(error, SnapshotLost) or not is_lost(error) or attempt > self.retries:
                    raise error_from_server(error, self.node) from None
                # A server that just failed over may need some time.
                time.sleep(min(0.1 * 2**attempt, 2.0))

    def _rows_once(self, query: sql.Composed, mode: _Mode) -> list[tuple[Any, ...]]:
        connection = self._open()
        statement, values = bind(query, connection)
        with psycopg.RawCursor(connection) as cursor:
            self._set(cursor, mode)
            # Binary results use the extended protocol, which accepts one statement only: a filter cannot add another.
            cursor.execute(statement, values or None, binary=True)
            return cursor.fetchall()

    def _lines_once(self, query: sql.Composed, timeout: float, max_bytes: int) -> list[bytes]:
        connection = self._open()
        lines: list[bytes] = []
        size = 0
        with connection.cursor() as cursor:
            self._set(cursor, (timeout, "any"))
            with cursor.copy(query) as copy:
                for data in copy:
                    lines.append(bytes(data))
                    size += len(data)
                    if max_bytes and size > max_bytes:
                        raise ResultTooLarge(f"the result has more than {max_bytes:,} bytes", node=self.node.name)
        return lines

    def _set(self, cursor: Cursor, mode: _Mode) -> None:
        """Set the timeout and the scan mode of the next statement."""
        if mode != self._mode or not self.snapshot:
            timeout, scan = mode
            # Without a transaction, a filter that calls set_config could have made the session writable.
            cursor.execute(
                f"SET statement_timeout = {int(timeout * 1000)}; SET default_transaction_read_only = on;"
                f" SET enable_indexscan = {_switch(scan != 'pages')}; SET enable_bitmapscan = on;"
                f" SET enable_sort = {_switch(scan != 'ordered')};"
                f" SET enable_indexonlyscan = {_switch(scan == 'ordered')}"
            )
            self._mode = mode

    def _open(self) -> Connection:
        if self._connection is None:
            connection = connect(self.node, application=self.application)
            try:
                # If this process dies on a cluster, the server ends the session by itself. A task uses one core of the
                # server: the user sets the number of tasks, and parallel workers start slower than they save time.
                connection.execute(
                    "SET idle_in_transaction_session_timeout = '2min'; SET statement_timeout = 0;"
                    " SET max_parallel_workers_per_gather = 0"
                )
            except Exception:
                connection.close()
                raise
            self._connection = connection
            self._has_joined = False
            self._mode = _DEFAULT_MODE
        if self.snapshot and not self._has_joined:
            try:
                self._join(self._connection, self.snapshot)
            except Exception:
                self.close()
                raise
            self._has_joined = True
        return self._connection

    def _join(self, connection: Connection, snapshot: str) -> None:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        try:
            connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
        except psycopg.Error as error:
            if is_lost(error):
                raise
            raise SnapshotLost(
                f"the connection that holds the snapshot was lost ({error.diag.message_primary})",
                cure="make sure that the node is running",
                node=self.node.name,
            ) from None

    def session(self) -> Connection:
        """Return the session, in its snapshot, for a COPY. After an error the caller must close the reader."""
        if self.application in _stopped:
            raise Interrupted("the run was stopped", node=self.node.name)
        return self._open()

    def end_transaction(self) -> None:
        """End the transaction, and with it its locks; the next statement joins the snapshot again."""
        if self._connection is not None and self._has_joined:
            try:
                self._connection.execute("ROLLBACK")
                self._has_joined = False
            except psycopg.Error:
                self.close()

    def warm_up(self) -> None:
        """Open the session, so that the next query does not include the time to connect."""
        if self._connection is None:
            self.rows(sql.SQL("SELECT 1").format())

    def cancel(self) -> None:
        """Cancel the running query, from another thread."""
        connection = self._connection
        if connection is not None:
            with suppress(Exception):
                connection.cancel_safe(timeout=5)

    def close(self) -> None:
        """Close the session; the next query opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _switch(is_on: bool) -> str:
    return "on" if is_on else "off"


def timed_out(error: BaseException) -> bool:
    """Return whether a query exceeded its timeout."""
    return isinstance(error, QueryError) and error.sqlstate == TIMED_OUT


# Readers with a running task, so that a stopped run can cancel their queries.
_busy: set[Reader] = set()
_stopped: set[str] = set()
# Applications of runs that last: they keep their idle sessions while other runs of this process read.
_lasting: set[str] = set()
_Address = tuple[str, "str | None", str]
_idle: dict[_Address, list[Reader]] = {}
# By conninfo and application.
_idle_writers: dict[tuple[str, str], list[Connection]] = {}
_lock = threading.Lock()


@contextmanager
def borrow(
    node: Node, snapshot: str | None, *, application: str, retries: int, keep_locks: bool = True
) -> Iterator[Reader]:
    """Yield an idle reader of this process or a new one; it is reused by the next task.

    Without `keep_locks` its transaction ends with the block, and with it the locks that it holds.
    """
    address = (node.conninfo, snapshot, application)
    with _lock:
        idle = _idle.get(address)
        reader = idle.pop() if idle else None
        # Readers of an earlier run hold old snapshots open; readers of another snapshot of this run would exceed
        # the maximum number of connections.
        stale = [
            key
            for key in _idle
            if (key[2] != application and key[2] not in _lasting) or (key[0] == address[0] and key[1] != snapshot)
        ]
        outdated = [old for key in stale for old in _idle.pop(key)]
    for old in outdated:
        old.close()
    if reader is None:
        reader = Reader(node, snapshot, application=application, retries=retries)
    with _lock:
        _busy.add(reader)
    try:
        yield reader
    except BaseException:
        # After an error the state of the transaction is unknown: reconnect for the next task.
        reader.close()
        raise
    else:
        if not keep_locks:
            reader.end_transaction()
        with _lock:
            is_kept = application not in _stopped
            if is_kept:
                _idle.setdefault(address, []).append(reader)
        if not is_kept:
            # `stop_all` closed the sessions that were idle then. This one would hold its locks until it times out.
            reader.close()
    finally:
        with _lock:
            _busy.discard(reader)


@contextmanager
def borrow_writer(node: Node, *, application: str) -> Iterator[Connection]:
    """Yield an idle session of this process that can write, or a new one; it is reused by the next task.

    The block must end its transaction: a session that is inside of one is closed.
    """
    address = (node.conninfo, application)
    with _lock:
        idle = _idle_writers.get(address)
        connection = idle.pop() if idle else None
        outdated = [old for key in [key for key in _idle_writers if key != address] for old in _idle_writers.pop(key)]
    for old in outdated:
        old.close()
    if connection is None:
        connection = connect(node, application=application, read_only=False)
    is_kept = False
    try:
        yield connection
        with _lock:
            is_kept = application not in _stopped and connection.info.transaction_status == TransactionStatus.IDLE
            if is_kept:
                _idle_writers.setdefault(address, []).append(connection)
    finally:
        if not is_kept:
            connection.close()


def close_idle() -> None:
    """Close the idle sessions of this process."""
    with _lock:
        idle: list[Reader | Connection] = [reader for readers in _idle.values() for reader in readers]
        idle += [writer for writers in _idle_writers.values() for writer in writers]
        _idle.clear()
        _idle_writers.clear()
    for session in idle:
        session.close()


def allow(application: str, *, lasting: bool = False) -> None:
    """Allow a run to read again that was stopped in this process; a lasting one keeps its idle sessions until then."""
    with _lock:
        _stopped.discard(application)
        if lasting:
            _lasting.add(application)


def stop_all(application: str) -> None:
    """Stop a run in this process: cancel its running queries and close its idle sessions."""
    with _lock:
        # A cancelled query looks like a timeout and would be retried in pieces.
        _stopped.add(application)
        _lasting.discard(application)
        busy = [reader for reader in _busy if reader.application == application]
        idle: list[Reader | Connection] = [
            reader for key in [key for key in _idle if key[2] == application] for reader in _idle.pop(key)
        ]
        writers = [key for key in _idle_writers if key[1] == application]
        idle += [writer for key in writers for writer in _idle_writers.pop(key)]
    for reader in busy:
        reader.cancel()
    for session in idle:
        session.close()
