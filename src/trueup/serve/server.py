"""The HTTP server: uvicorn, with limits for clients that send or read slowly."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from trueup.errors import ConfigError, TrueupError
from trueup.serve.options import ServeOptions

# Seconds in which the head of a request must be complete, and after which a client that reads nothing is dropped.
HEAD_SECONDS = 10.0
READ_SECONDS = 30.0
_MAX_HEAD = 16 * 1024
_MAX_CONNECTIONS = 500
# Of these, at most this number wait for a request, or for a client that does not read: with more, the one that has
# waited longest is closed. Connections that do nothing must not keep others out.
_MAX_WAITING = 250
_START_SECONDS = 30.0


class Protocol(H11Protocol):
    """A connection that is closed if the head of a request is not complete in time, or the answer is not read."""

    _head_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for the first request."""
        super().connection_made(transport)
        self._expect_head()
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Process data; the time for a head starts with its first byte, and does not start again with each."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._cancel_head()
            self._waiting.pop(self, None)
            if self.conn.their_state is h11.DONE and self.conn.trailing_data[0]:
                # A second request before the first answer: with thousands of them, a client would keep others waiting.
                self.cycle.keep_alive = False
        elif self._head_timer is None and self.timeout_keep_alive_task is None:
            self._expect_head()

    def pause_writing(self) -> None:
        """The client does not read: give it some time."""
        super().pause_writing()
        self._wait()
        if self._read_timer is None:
            self._read_timer = self.loop.call_later(READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        if self.cycle is not None and not self.cycle.response_complete:
            self._waiting.pop(self, None)
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        if not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete):
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        self._cancel_head()
        self._waiting.pop(self, None)
        if self._read_timer is not None:
            self._read_timer.cancel()
        super().connection_lost(exc)

    @property
    def _waiting(self) -> dict[Protocol, None]:
        """The connections of the server that wait for their client, in the order of their beginning."""
        found: dict[Protocol, None] = vars(self.server_state).setdefault("trueup_waiting", {})
        return found

    def _wait(self) -> None:
        waiting = self._waiting
        waiting[self] = None
        if len(waiting) > _MAX_WAITING:
            oldest = next(iter(waiting))
            del waiting[oldest]
            oldest.transport.abort()

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _cancel_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def bind(options: ServeOptions) -> socket.socket:
    """Return a listening socket; port 0 chooses a free one. Raises ConfigError if the address cannot be used."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        return socket.create_server((options.host, options.port), family=family, backlog=512)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {options.host} port {options.port}: {error.strerror or error}",
            cure="choose another --port or --host, or end the program that uses it",
        ) from None


def address(options: ServeOptions, listening: socket.socket) -> str:
    """Return the URL of the server."""
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if options.has_tls else 'http'}://{shown}:{port}/"


def make_server(app: Any, options: ServeOptions) -> uvicorn.Server:
    """Return a server for an application."""
    # Scanners would fill the log with their requests; errors of the application are logged by it.
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    try:
        config = uvicorn.Config(
            app,
            http=Protocol,
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=_MAX_HEAD,
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_keep_alive=15,
            timeout_graceful_shutdown=2,
            ssl_certfile=options.tls_cert or None,
            ssl_keyfile=options.tls_key or None,
        )
        config.load()
    except OSError as error:
        cure = "check --tls-cert and --tls-key: PEM files, the key without a password"
        raise ConfigError(f"the TLS files cannot be used: {error}", cure=cure) from None
    return uvicorn.Server(config)


@contextmanager
def in_thread(app: Any, options: ServeOptions) -> Iterator[str]:
    """Run a server in a background thread during the block; yields its URL."""
    listening = bind(options)
    server = make_server(app, options)
    thread = threading.Thread(target=lambda: server.run(sockets=[listening]), name="trueup metrics", daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not server.started:
            if not thread.is_alive() or time.monotonic() > deadline:
                raise TrueupError("the server of the metrics did not start", cure="see the log")
            time.sleep(0.01)
        yield address(options, listening)
    finally:
        server.should_exit = True
        thread.join(5.0)
        listening.close()
