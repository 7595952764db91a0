"""Locks on the tables that the sessions which read inside of the pause take before the fence is requested.

A TRUNCATE locks its table before its guard waits for the fence. A session that is to read the table then waits for
the TRUNCATE, which waits for the end of the pause. So every session that reads inside of the pause locks its tables
first, in ACCESS SHARE mode, and one session keeps such locks until the end: a TRUNCATE waits for them, and sessions
that have a lock read on. They delay no one who reads or writes.

A writer that holds the shared lock may need such a table too (INSERT, then TRUNCATE, in one transaction). It waits for
these locks, the fence waits for the writer, and the server sees no deadlock. `giving_way` finds that and releases them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psycopg
from psycopg import sql

from trueup.config.model import Node
from trueup.db.connection import Connection, one_row, one_value
from trueup.db.foreign_keys import TableName
from trueup.db.lock_holders import Holder
from trueup.db.node import error_from_server
from trueup.db.statements import load
from trueup.errors import QueryError, TrueupError
from trueup.verbs.sync.model import SyncTable

# A session in the queue of a lock makes others wait behind it.
_ATTEMPT_MS = 100
# Seconds between two looks for a writer that waits.
_INTERVAL = 0.03
# The share of the server's lock table that may be used.
_SHARE = 0.25


class GaveWay(TrueupError):
    """The pause was ended for a session of an application that needs a table: it can be repeated at once."""


@dataclass(frozen=True)
class Reader:
    """A session with the source that reads tables inside of the pause."""

    connection: Connection
    tables: Sequence[SyncTable]


class Hold:
    """The locks on the tables of the source."""

    def __init__(self, node: Node, readers: Sequence[Reader]) -> None:
        self.node = node
        self.is_held = False
        self._readers = [reader for reader in readers if reader.tables]
        # A server with more tables than its lock table has room for.
        self._is_possible = _has_room(self._readers)

    def take(self, milliseconds: int) -> bool:
        """Lock the tables in all sessions; return False, without any lock, if one is not available at once.

        No transaction has a snapshot afterwards. The server ends those that are idle for longer than `milliseconds`.
        """
        if not self._is_possible or self.is_held:
            return True
        try:
            for reader in self._readers:
                reader.connection.execute(_lock([table.name for table in reader.tables], milliseconds))
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            self.release()
            return False
        except psycopg.Error as error:
            raise error_from_server(error, self.node) from None
        self.is_held = True
        return True

    def release(self) -> None:
        """Release the locks; the sessions must be idle."""
        self.is_held = False
        for reader in self._readers:
            with suppress(psycopg.Error):
                if reader.connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                    reader.connection.execute("ROLLBACK")

    @contextmanager
    def giving_way(self, watcher: Connection) -> Iterator[None]:
        """Release the locks during the block if a writer waits for them; `watcher` is a session to look with."""
        if not self.is_held:
            yield
            return
        stop = threading.Event()
        thread = threading.Thread(target=self._watch, args=(watcher, stop), name="trueup-hold", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def is_waited_for(self, watcher: Connection) -> bool:
        """Return whether a session waits for the locks: others, such as a validation, cannot read its table then."""
        oids = [table.oid for table in self._readers[0].tables]
        return self.is_held and bool(watcher.execute(_statement("exclusive"), {"oids": oids}).fetchall())

    def holders(self) -> str:
        """Return the sessions that hold or request locks which exclude readers."""
        connection = self._readers[0].connection
        oids = [table.oid for table in self._readers[0].tables]
        rows = connection.execute(_statement("exclusive"), {"oids": oids}).fetchall()
        return "; ".join(str(Holder(*row)) for row in rows) or "a session that has ended"

    def refuse(self, seconds: float) -> QueryError:
        """Return the error for locks that were not available within `seconds`."""
        return QueryError(
            f"no lock for reading all tables within {seconds:g} s: held by {self.holders()}",
            cure="run the same command again when that session has ended its transaction, or wait longer: --timeout",
            sqlstate="55P03",
            node=self.node.name,
        )

    def _watch(self, watcher: Connection, stop: threading.Event) -> None:
        pids = [reader.connection.info.backend_pid for reader in self._readers]
        with suppress(psycopg.Error):
            while not stop.wait(_INTERVAL):
                if one_value(watcher.execute(_statement("waits_for"), {"pids": pids})):
                    self.release()
                    return


def _has_room(readers: Sequence[Reader]) -> bool:
    """Return whether the lock table of the server has room for the locks on all tables and partitions."""
    if not readers:
        return False
    needed = room = 0
    for reader in readers:
        oids = [table.oid for table in reader.tables]
        count, room = one_row(readers[0].connection.execute(_statement("room"), {"oids": oids}))
        needed += count
    return bool(needed <= _SHARE * room)


def _lock(tables: Sequence[TableName], milliseconds: int) -> sql.Composed:
    """Return the statements that lock tables and partitions in a transaction without a snapshot, in one message."""
    return sql.SQL(
        "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; SET LOCAL lock_timeout = {attempt};"
        " SET LOCAL statement_timeout = {left}; SET LOCAL idle_in_transaction_session_timeout = {left};"
        " LOCK TABLE {tables} IN ACCESS SHARE MODE; SET LOCAL lock_timeout = {left}"
    ).format(
        attempt=_ATTEMPT_MS,
        left=milliseconds,
        tables=sql.SQL(", ").join(sql.Identifier(*table) for table in tables),
    )


def _statement(name: str) -> str:
    return load("trueup.verbs.switchover", "hold.sql")[name]
