"""End sessions that do not answer in time: a server that hangs must not let the command hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import psycopg

from trueup.db.alive import cut
from trueup.db.connection import Connection, NodeConnection

_INTERVAL = 0.05


class Deadline:
    """Cuts the connections whose answers are late. No time-out of a server ends a wait for a server that hangs."""

    def __init__(self, connections: Sequence[Connection]) -> None:
        self._connections = connections
        # The nodes whose connections were cut.
        self.silent: list[str] = []

    @contextmanager
    def watch(self, left: Callable[[], float]) -> Iterator[Deadline]:
        """Cut the connections that wait for an answer as soon as `left` returns less than 0 seconds, in the block."""
        stop = threading.Event()

        def run() -> None:
            while not stop.wait(_INTERVAL):
                if left() < 0:
                    self._cut()

        thread = threading.Thread(target=run, name="trueup-deadline", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            stop.set()
            thread.join()

    def _cut(self) -> None:
        for connection in self._connections:
            with suppress(psycopg.Error):
                if connection.pgconn.transaction_status != psycopg.pq.TransactionStatus.ACTIVE:
                    continue
                # First, because the thread that waits for the answer reads it as soon as the connection is cut.
                if isinstance(connection, NodeConnection) and connection.node is not None:
                    self.silent.append(connection.node.name)
                cut(connection)


@contextmanager
def at_most(seconds: float, *connections: Connection) -> Iterator[Deadline]:
    """Cut these connections if they still wait for an answer after `seconds`."""
    until = time.monotonic() + seconds
    with Deadline(connections).watch(lambda: until - time.monotonic()) as deadline:
        yield deadline
