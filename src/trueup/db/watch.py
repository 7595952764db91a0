"""Watch the nodes during a run: their load, and what the queries of the run wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trueup.config.model import Node
from trueup.db.connection import Connection
from trueup.db.node import connect, error_from_server
from trueup.db.statements import load

# Queries that run longer are reported.
SLOW_SECONDS = 10.0


@dataclass(frozen=True)
class Load:
    """Load of a node: seconds of replication lag, active sessions of others, sessions that wait for locks.

    None: the role is not allowed to see the value.
    """

    node: str
    lag: float | None = 0.0
    active: int | None = 0
    lock_waits: int = 0
    # What the queries of this run wait for; empty: nothing.
    waits: str = ""


def load_of(connection: Connection, node: str, application: str) -> Load:
    """Read the load of one node."""
    blocks = load("trueup.db", "watch.sql")
    row = connection.execute(blocks["load"], {"application": application}).fetchone()
    assert row is not None
    lag, active, lock_waits = row
    own = connection.execute(blocks["waits"], {"application": application}).fetchone()
    return Load(node, lag, active, lock_waits, _wait_text(own))


def _wait_text(own: tuple[Any, ...] | None) -> str:
    if own is None or own[0] is None:
        return ""
    seconds, is_locked, blockers = own
    if is_locked:
        return f"a query of this run has waited {seconds:.0f} s for a lock held by {blockers or 'another session'}"
    return f"a query of this run has been running for {seconds:.0f} s" if seconds >= SLOW_SECONDS else ""


class Watch:
    """Reads the load of all nodes every `interval` seconds, in a thread with its own sessions."""

    def __init__(
        self, nodes: Sequence[Node], *, application: str, interval: float, delay: float, report: Callable[[str], None]
    ) -> None:
        self._nodes = nodes
        self._application = application
        self._interval = interval
        self._delay = delay
        self._report = report
        self._loads = {node.name: Load(node.name) for node in nodes}
        self._connections: dict[str, Connection] = {}
        self._reported: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trueup-watch", daemon=True)

    def start(self) -> Watch:
        """Start the thread; without a delay, the loads have been read once when this returns."""
        if not self._delay:
            self.read_loads()
        self._thread.start()
        return self

    def loads(self) -> list[Load]:
        """Return the last load of each node."""
        return list(self._loads.values())

    def close(self) -> None:
        """End the thread and its sessions."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        for connection in self._connections.values():
            connection.close()

    def _run(self) -> None:
        # A run shorter than the delay opens no additional sessions.
        if self._stop.wait(self._delay):
            return
        while not self._stop.wait(self._interval):
            self.read_loads()

    def read_loads(self) -> None:
        """Read the load of every node once."""
        for node in self._nodes:
            try:
                connection = self._connections.get(node.name)
                if connection is None:
                    connection = connect(node, application=f"{self._application} watch")
                    self._connections[node.name] = connection
                load = load_of(connection, node.name, self._application)
                self._loads[node.name] = load
                self._report_wait(node.name, load.waits)
                self._report_hidden(load)
            except Exception as error:
                # The run itself fails if the node has a problem; here it is only reported.
                lost = self._connections.pop(node.name, None)
                if lost is not None:
                    lost.close()
                self._report_wait(node.name, f"does not respond, retrying: {error_from_server(error, node).message}")

    def _report_wait(self, node: str, text: str) -> None:
        """Report a wait of a node, at most once per SLOW_SECONDS."""
        now = time.monotonic()
        if text and now - self._reported.get(node, -SLOW_SECONDS) >= SLOW_SECONDS:
            self._reported[node] = now
            self._report(f"{node}: {text}")

    def _report_hidden(self, load: Load) -> None:
        hidden = [name for name, value in (("lag", load.lag), ("active sessions", load.active)) if value is None]
        if hidden and f"{load.node} hidden" not in self._reported:
            self._reported[f"{load.node} hidden"] = 0.0
            self._report(
                f"{load.node}: the role cannot see {' and '.join(hidden)}: grant pg_monitor to it to apply their limits"
            )
