"""A look at the nodes while a run goes on: how busy they are, and what our own queries wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trueup.db.connection import Connection
from trueup.db.node import connect, error_from_server
from trueup.db.statements import load

if TYPE_CHECKING:
    from trueup.config.model import Node

# A query that runs longer than this is worth a word.
SLOW_SECONDS = 10.0


@dataclass(frozen=True)
class Load:
    """How busy a node is: seconds of replication lag, active sessions of others, sessions that wait for locks.

    None stands for what the user is not allowed to see.
    """

    node: str
    lag: float | None = 0.0
    active: int | None = 0
    lock_waits: int = 0
    # What our own queries wait for, in words; empty: nothing.
    waits: str = ""


def load_of(connection: Connection, node: str, application: str) -> Load:
    """Ask one node."""
    blocks = load("trueup.db", "watch.sql")
    row = connection.execute(blocks["load"], {"application": application}).fetchone()
    assert row is not None
    lag, active, lock_waits = row
    ours = connection.execute(blocks["waits"], {"application": application}).fetchone()
    return Load(node, lag, active, lock_waits, _in_words(ours))


def _in_words(ours: tuple[Any, ...] | None) -> str:
    if ours is None or ours[0] is None:
        return ""
    seconds, is_locked, blockers = ours
    if is_locked:
        return f"a query of ours waits {seconds:.0f} s for a lock held by {blockers or 'another session'}"
    return f"a block takes {seconds:.0f} s so far" if seconds >= SLOW_SECONDS else ""


class Watch:
    """Looks at all nodes every so many seconds, in a thread with sessions of its own."""

    def __init__(
        self, nodes: Sequence[Node], *, application: str, seconds: float, after: float, say: Callable[[str], None]
    ) -> None:
        self._nodes = nodes
        self._application = application
        self._seconds = seconds
        self._after = after
        self._say = say
        self._loads = {node.name: Load(node.name) for node in nodes}
        self._connections: dict[str, Connection] = {}
        self._told: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trueup-watch", daemon=True)

    def start(self) -> Watch:
        """Begin; without a delay, the first look is over when this returns."""
        if not self._after:
            self._look()
        self._thread.start()
        return self

    def loads(self) -> list[Load]:
        """What was seen last, node by node."""
        return list(self._loads.values())

    def close(self) -> None:
        """End the thread and its sessions."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        for connection in self._connections.values():
            connection.close()

    def _run(self) -> None:
        # A run that is over before costs the nodes no further session.
        if self._stop.wait(self._after):
            return
        while not self._stop.wait(self._seconds):
            self._look()

    def _look(self) -> None:
        for node in self._nodes:
            try:
                connection = self._connections.get(node.name)
                if connection is None:
                    connection = connect(node, application=f"{self._application} watch")
                    self._connections[node.name] = connection
                seen = load_of(connection, node.name, self._application)
                self._loads[node.name] = seen
                self._tell(node.name, seen.waits)
                self._tell_hidden(seen)
            except Exception as error:
                # The run itself meets whatever is wrong with the node; here it is only worth a word.
                lost = self._connections.pop(node.name, None)
                if lost is not None:
                    lost.close()
                self._tell(node.name, f"does not answer, trying again: {error_from_server(error, node).message}")

    def _tell(self, node: str, text: str) -> None:
        """Say what is waited for, once in a while."""
        now = time.monotonic()
        if text and now - self._told.get(node, -SLOW_SECONDS) >= SLOW_SECONDS:
            self._told[node] = now
            self._say(f"{node}: {text}")

    def _tell_hidden(self, seen: Load) -> None:
        hidden = [name for name, value in (("lag", seen.lag), ("active sessions", seen.active)) if value is None]
        if hidden and f"{seen.node} hidden" not in self._told:
            self._told[f"{seen.node} hidden"] = 0.0
            self._say(f"{seen.node}: {' and '.join(hidden)} cannot be seen by this user: grant pg_monitor to mind them")
