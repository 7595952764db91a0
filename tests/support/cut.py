"""A TCP proxy that breaks all its connections when clients have sent a given number of requests."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Literal

# What happens to the request at which connections break, and to new connections afterwards:
# `unsent`: the server does not get it; `unanswered`: the server gets it and its answer is dropped. New connections are
# accepted. `down`: as `unanswered`, and new connections are refused. `during` is called before the clients notice.
Way = Literal["unsent", "unanswered", "down"]


class CuttingProxy:
    """Forwards bytes to a server on this machine; the first request, counted from 1, is that of the first connect."""

    def __init__(
        self,
        port: int,
        *,
        at: int = 0,
        way: Way = "unsent",
        when: Callable[[bytes], bool] | None = None,
        during: Callable[[], None] = lambda: None,
    ) -> None:
        # The port of the server; another one after a failover.
        self.to = port
        self._first = port
        self._at = at
        self._way = way
        self._when = when
        self.during = during
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._broken: list[socket.socket] = []
        # The connections and requests so far, and the request at which connections broke.
        self.connections = 0
        self.requests = 0
        # Bytes that the server has sent.
        self.answered = 0
        self.cut: bytes | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def address(self, uri: str) -> str:
        """Return the address of a database of the server, through this proxy."""
        return uri.replace(f":{self._first}/", f":{self.port}/")

    def close(self) -> None:
        """Refuse new connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                try:
                    server = socket.create_connection(("127.0.0.1", self.to))
                except ConnectionRefusedError:
                    # The server restarts.
                    _end(client)
                    client.close()
                    continue
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._open += [client, server]
                threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
                threading.Thread(target=self._answers, args=(server, client), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 20):
                with self._lock:
                    self.requests += 1
                    is_cut = self.cut is None and (
                        self.requests == self._at or (self._when is not None and self._when(data))
                    )
                    if is_cut:
                        self._break(data, server)
                        return
                server.sendall(data)
        _end(client, server)

    def _break(self, data: bytes, server: socket.socket) -> None:
        self.cut = data
        self._broken = list(self._open)
        if self._way == "down":
            self.close()
        if self._way != "unsent":
            server.sendall(data)
        self.during()
        for end in self._open:
            if end is not server or self._way == "unsent":
                _end(end)
        if self._way != "unsent":
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_WR)

    def _answers(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 20):
                with self._lock:
                    self.answered += len(data)
                # After the cut, the server must be able to send its answer, so it is read and dropped.
                with contextlib.suppress(OSError):
                    if client not in self._broken:
                        client.sendall(data)
        _end(client, server)


def _end(*sockets: socket.socket) -> None:
    for end in sockets:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
