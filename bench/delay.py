"""A TCP proxy that delays what it forwards, as a network between two machines does, and counts what it forwards.

    python bench/delay.py HOST PORT LATENCY [LISTEN_HOST LISTEN_PORT]

It prints its port. When its input ends, it prints what it has counted.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass

_CHUNK = 1 << 18


@dataclass
class Traffic:
    """What passed through a proxy: connections, round trips, and bytes in both directions."""

    connections: int = 0
    most_connections: int = 0
    trips: int = 0
    bytes: int = 0


@dataclass
class Proxy:
    """A proxy in a process of its own: its port, and its traffic after the block."""

    port: int
    traffic: Traffic


@contextmanager
def delayed(host: str, port: int, latency: float, *listen: str | int) -> Iterator[Proxy]:
    """Start a proxy in front of an address; a round trip takes `latency` seconds more."""
    command = [sys.executable, __file__, host, str(port), str(latency), *map(str, listen)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    proxy = Proxy(int(process.stdout.readline()), Traffic())
    try:
        yield proxy
    finally:
        process.stdin.close()
        proxy.traffic = Traffic(**json.loads(process.stdout.readline()))
        process.wait()


class _Forwarding:
    """All connections of a proxy; each direction takes half of the latency."""

    def __init__(self, host: str, port: int, latency: float) -> None:
        self.traffic = Traffic()
        self._host, self._port, self._latency = host, port, latency
        self._open = 0

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection, which takes a round trip itself."""
        traffic = self.traffic
        traffic.connections += 1
        traffic.trips += 1
        self._open += 1
        traffic.most_connections = max(traffic.most_connections, self._open)
        await asyncio.sleep(self._latency)
        try:
            from_server, to_server = await asyncio.open_connection(self._host, self._port)
            turn = _Turn(traffic)
            await asyncio.gather(
                self._forward(reader, to_server, turn.sent), self._forward(from_server, writer, turn.received)
            )
        except OSError:
            writer.close()
        finally:
            self._open -= 1

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Callable[[int], None]
    ) -> None:
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        sender = asyncio.create_task(_send(waiting, writer))
        data = b"-"
        while data:
            try:
                data = await reader.read(_CHUNK)
            except OSError:
                data = b""
            count(len(data))
            waiting.put_nowait((time.monotonic() + self._latency / 2, data))
        await sender


class _Turn:
    """Counts a round trip when a client sends something after an answer."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic, self._is_answered = traffic, True

    def sent(self, size: int) -> None:
        """Count what a client sends."""
        self._traffic.bytes += size
        self._traffic.trips += self._is_answered and size > 0
        self._is_answered = False

    def received(self, size: int) -> None:
        """Count an answer."""
        self._traffic.bytes += size
        self._is_answered = True


async def _send(waiting: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while True:
            due, data = await waiting.get()
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if not data:
                break
            writer.write(data)
            await writer.drain()
    with suppress(OSError):
        writer.close()


async def _serve(host: str, port: int, latency: float, listen: tuple[str, int]) -> None:
    forwarding = _Forwarding(host, port, latency)
    server = await asyncio.start_server(forwarding.accept, *listen)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    sys.stdout.write(json.dumps(asdict(forwarding.traffic)) + "\n")
    sys.stdout.flush()
    # Without waiting for connections that are open.
    os._exit(0)


def main() -> None:
    host, port, latency, *listen = sys.argv[1:]
    address = (listen[0], int(listen[1])) if listen else ("127.0.0.1", 0)
    asyncio.run(_serve(host, int(port), float(latency), address))


if __name__ == "__main__":
    main()
