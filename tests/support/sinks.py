"""A sink under test: the server or folder behind it, its documents, and functions that stop and restore it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trueup.sinks import open_sink
from trueup.sinks.base import Sink, SourceTable

Stored = dict[tuple[str, ...], dict[str, Any]]
# A table with a fixed shard, and one whose rows may move between shards.
THINGS = SourceTable(
    "public.things",
    (("id", "bigint"), ("name", "text"), ("price", "numeric"), ("seen", "timestamp with time zone"), ("n", "text")),
    ("id",),
    routed=False,
)
PARTS = SourceTable('public."Odd Parts"', (("a", "text"), ("b", "numeric"), ("note", "text")), ("a", "b"), routed=True)


class Gate:
    """A TCP proxy to a server. After `close`, open connections break and new ones are refused."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener: socket.socket | None = None
        self._open: list[socket.socket] = []
        self.port = 0
        self.open()

    def open(self) -> None:
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", self.port))
        self._listener.listen()
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        assert self._listener is not None
        # shutdown wakes the thread that waits in accept, close alone does not.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for each in (self._listener, *self._open):
            each.close()
        self._open = []

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                self._open += [near, far]
                for each in (near, far):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@dataclass
class Rig:
    """A sink: its address, its documents (by shard and key, or by key), and functions that stop and restore it."""

    address: str
    # Return the documents of a table. A document is named by its key, after the shard if rows may move.
    stored: Callable[[SourceTable], Stored]
    down: Callable[[], object]
    up: Callable[[], object]
    # Values that make the sink refuse a row.
    poison: Mapping[str, Any]
    options: dict[str, str] = field(default_factory=dict)
    things: SourceTable = THINGS
    parts: SourceTable = PARTS

    def open(self, **more: str) -> Sink:
        return open_sink(self.address, {**self.options, **more})
