"""Name the sessions that hold the lock that another session waits for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psycopg
from psycopg import sql

from trueup.config.model import Node
from trueup.db.connection import Connection
from trueup.db.node import connect
from trueup.db.statements import load
from trueup.errors import QueryError

# Seconds between two looks. A session that waits at two looks in a row is worth a message.
_INTERVAL = 0.5
LOCK_NOT_AVAILABLE = "55P03"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Holder:
    """The holder of a lock: a session, or a prepared transaction. Fields that the role may not see are empty."""

    pid: int | None
    role: str
    application: str
    seconds: float | None
    state: str

    def __str__(self) -> str:
        if not self.pid:
            return f"a prepared transaction{f' ({self.state})' if self.state else ''}"
        session = describe_session(self.pid, self.role, self.application, self.seconds)
        return f"{session}: {self.state}" if self.state else session


def describe_session(pid: int, role: str, application: str, seconds: float | None) -> str:
    """Return a session of a server as text."""
    since = "" if seconds is None else f", in a transaction for {seconds:.1f} s"
    return f"process {pid} ({', '.join(part for part in (role, application) if part)}{since})"


def limit_lock_waits(seconds: float) -> sql.Composed:
    """Return the statement that limits how long a session waits for a lock; 0: without a limit."""
    # A fraction of a millisecond must not become 0, which means no limit.
    milliseconds = max(1, round(seconds * 1000)) if seconds else 0
    return sql.SQL("SET lock_timeout = {}").format(milliseconds)


def lock_holders(connection: Connection, pid: int) -> list[Holder]:
    """Return the sessions that block this one; empty if it does not wait for a lock."""
    rows = connection.execute(load("trueup.db", "lock_holders.sql")["holders"], {"pid": pid}).fetchall()
    return [Holder(*row) for row in rows]


def holders_of(connection: Connection, schema: str, table: str) -> list[Holder]:
    """Return the sessions and the prepared transactions that keep a table from being altered now."""
    query = load("trueup.db", "lock_holders.sql")["of_table"]
    return [Holder(*row) for row in connection.execute(query, {"schema": schema, "table": table}).fetchall()]


@contextmanager
def named_lock_holders(
    node: Node,
    waiting: Connection,
    table: Callable[[], str],
    *,
    seconds: float,
    effect: str,
    option: str = "",
    watcher: Connection | None = None,
) -> Iterator[None]:
    """Log who holds the lock while a session waits in the block; the error at the time-out names the holder.

    `table` returns the table that the session uses now, `effect` says what a time-out means for the node, and `option`
    is the option that sets the seconds. `watcher` is a session that asks the server; without it, a session is opened if
    the block takes longer than a moment.
    """
    watch = _Watch(node, waiting.info.backend_pid, table, seconds, watcher)
    watch.start()
    try:
        yield
    except (psycopg.errors.LockNotAvailable, QueryError) as error:
        if error.sqlstate != LOCK_NOT_AVAILABLE:
            raise
        raise QueryError(
            f"no lock within {seconds:g} s: held by {watch.holders or 'a session that has ended'}; {effect}",
            sqlstate=LOCK_NOT_AVAILABLE,
            cure="run the command again when that session has ended its transaction"
            + (f", or wait longer: {option}" if option else ""),
            node=node.name,
            table=getattr(error, "table", None) or table(),
        ) from None
    finally:
        watch.stop()


class _Watch(threading.Thread):
    """Looks at a session from another one, and logs who blocks it."""

    def __init__(
        self, node: Node, pid: int, table: Callable[[], str], seconds: float, watcher: Connection | None
    ) -> None:
        super().__init__(name=f"trueup-locks-{node.name}", daemon=True)
        self._node, self._pid, self._table, self._watcher = node, pid, table, watcher
        self._seconds = seconds
        self._interval = min(_INTERVAL, seconds / 4) if seconds else _INTERVAL
        self._stopped = threading.Event()
        self.holders = ""

    def run(self) -> None:
        # Without a session that can ask, the wait is the same; only the holder has no name.
        with suppress(Exception):
            if self._stopped.wait(self._interval):
                return
            if self._watcher is not None:
                return self._look_until_stopped(self._watcher)
            with connect(self._node, application="trueup locks") as watcher:
                self._look_until_stopped(watcher)

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self.join()

    def _look_until_stopped(self, watcher: Connection) -> None:
        before: set[int | None] = set()
        logged: set[int | None] = set()
        while True:
            holders = lock_holders(watcher, self._pid)
            pids = {holder.pid for holder in holders}
            if holders:
                self.holders = "; ".join(map(str, holders))
            if pids & before and pids != logged:
                limit = f" (at most {self._seconds:g} s)" if self._seconds else ""
                message = "node %s, %s: waiting%s for a lock that is held by %s"
                _log.warning(
                    message, self._node.name, self._table(), limit, self.holders, extra={"node": self._node.name}
                )
                logged = pids
            before = pids
            if self._stopped.wait(self._interval):
                return
