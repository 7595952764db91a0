"""Helpers for tests of syncs: two databases and the sync between them, and proxies that count round trips."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from trueup.config.model import Node
from trueup.config.settings import SparkSettings
from trueup.db.node import connect
from trueup.engine.progress import Silent
from trueup.testing.postgres import Database
from trueup.verbs.sync import ending, state, status
from trueup.verbs.sync import run as sync
from trueup.verbs.sync.model import Plan
from trueup.verbs.sync.request import Scope, SyncRequest
from trueup.verbs.sync.state import State
from trueup.verbs.sync.status import SyncStatus
from trueup.verbs.sync.totals import Totals, Until


@dataclass
class Pair:
    """A source, a target, and the sync between them."""

    source: Database
    target: Database
    request: SyncRequest
    messages: list[dict[str, Any]] = field(default_factory=list)

    def both(self, statements: str) -> None:
        for database in (self.source, self.target):
            database.execute(statements)

    def with_scope(self, scope: Scope) -> Pair:
        self.request = replace(self.request, scope=scope)
        return self

    def plan(self) -> Plan:
        return sync.plan(self.request)

    def start(self) -> Plan:
        return sync.start(self.request, Silent())

    def run(self, *, once: bool = False) -> Totals:
        return sync.run(self.request, Until(once=once), Silent(), self.messages.append)

    def status(self) -> SyncStatus:
        return status.status(self.request)

    def drop(self) -> tuple[bool, bool]:
        dropped = ending.drop(self.request, timeout=30)
        return dropped.log, dropped.state

    def known(self) -> State:
        """Return the state on the target; a status needs many sessions more."""
        with connect(self.request.target, application="test") as connection:
            known = state.read(connection, self.request.name)
        assert known is not None
        return known

    def rows(self, query: str) -> tuple[list[Any], list[Any]]:
        return self.source.execute(query), self.target.execute(query)

    def check_equal(self, tables: Sequence[str]) -> None:
        """Compare every row of both sides as text, without trueup."""
        for table in tables:
            source, target = self.rows(f'SELECT t::text COLLATE "C" FROM {table} t ORDER BY 1')
            assert source == target, f"{table}: {len(source)} rows and {len(target)}"


def make_pair(source: Database, target: Database, *, source_uri: str = "", target_uri: str = "") -> Pair:
    """Return the pair of two databases, with other addresses for other roles."""
    request = SyncRequest(
        Node("n1", source_uri or source.uri),
        Node("n2", target_uri or target.uri),
        Scope("main"),
        SparkSettings(engine="local"),
    )
    return Pair(source, target, request)


@dataclass
class Wire:
    """A pair whose traffic passes through proxies that count round trips."""

    request: SyncRequest
    proxies: tuple[Proxy, Proxy]

    def source_trips(self) -> int:
        return self.proxies[0].trips()

    def target_trips(self) -> int:
        return self.proxies[1].trips()


class Proxy:
    """Forwards bytes in both directions and counts how often a response follows a request."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._trips = 0
        self.sessions = 0
        self._asked: dict[int, bool] = {}
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def trips(self) -> int:
        with self._lock:
            return self._trips

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._port))
            self.sessions += 1
            for ends, asks in (((client, server), True), ((server, client), False)):
                threading.Thread(target=self._pass, args=(*ends, self.sessions, asks), daemon=True).start()

    def _pass(self, reading: socket.socket, writing: socket.socket, number: int, asks: bool) -> None:
        with suppress(OSError):
            while data := reading.recv(1 << 20):
                with self._lock:
                    if not asks and self._asked.get(number):
                        self._trips += 1
                    self._asked[number] = asks
                writing.sendall(data)
        with suppress(OSError):
            writing.shutdown(socket.SHUT_WR)


@contextmanager
def wire(pair: Pair) -> Iterator[Wire]:
    """Connect the same pair through counting proxies."""
    proxies = (Proxy(pair.source.server.port), Proxy(pair.target.server.port))
    nodes = [
        Node(node.name, node.conninfo.replace(f":{database.server.port}/", f":{proxy.port}/"))
        for node, database, proxy in zip(
            (pair.request.source, pair.request.target), (pair.source, pair.target), proxies, strict=True
        )
    ]
    try:
        yield Wire(replace(pair.request, source=nodes[0], target=nodes[1]), proxies)
    finally:
        for proxy in proxies:
            proxy.close()
