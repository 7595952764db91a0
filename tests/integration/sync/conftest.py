"""Fixtures for syncs: two databases with the same tables, and short ways to start, to run rounds and to compare."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from support.fixtures import Databases
from trueup.config.model import Node
from trueup.config.settings import SparkSettings
from trueup.engine.progress import Silent
from trueup.testing.postgres import Database
from trueup.verbs.sync import run as sync
from trueup.verbs.sync.model import Plan
from trueup.verbs.sync.plan import Wanted
from trueup.verbs.sync.start import SyncRequest


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

    def wanting(self, **wanted: Any) -> Pair:
        self.request = replace(self.request, wanted=replace(self.request.wanted, **wanted))
        return self

    def plan(self) -> Plan:
        return sync.plan(self.request)

    def start(self) -> Plan:
        return sync.start(self.request, Silent())

    def run(self, **until: Any) -> sync.Totals:
        return sync.run(self.request, sync.Until(**until), Silent(), self.messages.append)

    def rows(self, query: str) -> tuple[list[Any], list[Any]]:
        return self.source.execute(query), self.target.execute(query)

    def check_equal(self, tables: Sequence[str]) -> None:
        """Every row of both sides as text, in full: nothing of trueup is asked."""
        for table in tables:
            mine, theirs = self.rows(f'SELECT t::text COLLATE "C" FROM {table} t ORDER BY 1')
            assert mine == theirs, f"{table}: {len(mine)} rows and {len(theirs)}"


@pytest.fixture
def pair(databases: Databases) -> Pair:
    """Two fresh databases, and the request of a sync from the first to the second."""
    return _pair(*databases(2))


@pytest.fixture
def make_pair() -> Callable[..., Pair]:
    """`make_pair(source, target, source_uri=…, target_uri=…)`: a pair of other databases or roles."""
    return _pair


def _pair(source: Database, target: Database, *, source_uri: str = "", target_uri: str = "") -> Pair:
    request = SyncRequest(
        Node("n1", source_uri or source.uri),
        Node("n2", target_uri or target.uri),
        Wanted("main"),
        SparkSettings(engine="local"),
    )
    return Pair(source, target, request)


@dataclass
class Wire:
    """A pair whose traffic passes through proxies that count round trips: how often an answer follows a question."""

    request: SyncRequest
    proxies: tuple[Proxy, Proxy]

    def source_trips(self) -> int:
        return self.proxies[0].trips()

    def target_trips(self) -> int:
        return self.proxies[1].trips()


class Proxy:
    """Passes bytes on, both ways, and counts how often the direction turns from the client's to the server's."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._trips = 0
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
        number = 0
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._port))
            number += 1
            for ends, asks in (((client, server), True), ((server, client), False)):
                threading.Thread(target=self._pass, args=(*ends, number, asks), daemon=True).start()

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


@pytest.fixture
def wire() -> Callable[[Pair], AbstractContextManager[Wire]]:
    """A function that gives the same pair through counting proxies."""
    return _wire


@contextmanager
def _wire(pair: Pair) -> Iterator[Wire]:
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
