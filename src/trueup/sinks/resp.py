"""A small client for Redis: many commands in one go, over TCP or TLS. All that a sink needs, and nothing to install."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

from trueup.config.secrets import mask
from trueup.errors import ConfigError

Command: TypeAlias = "Sequence[str | bytes]"
SECONDS = 60.0


class Refused(Exception):
    """An error that the server answered."""


@dataclass(frozen=True)
class RedisAddress:
    """Where a server is, and how to log in."""

    host: str
    port: int
    database: int
    is_tls: bool
    user: str
    password: str = field(repr=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}/{self.database}"


def parse_redis(url: str) -> RedisAddress:
    """Take `redis://user:password@host:port/number` apart; what is wrong with it is said without showing it."""
    try:
        parts = urlsplit(url)
        port, database = parts.port or 6379, int(parts.path.strip("/") or 0)
    except ValueError:
        parts, port, database = urlsplit("x://"), 0, 0
    if parts.scheme not in ("redis", "rediss") or not parts.hostname:
        raise ConfigError(
            "the address of the Redis sink is not understood",
            cure="write redis://host:6379/0, rediss:// for TLS; odd characters of a password as %40",
        )
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    return RedisAddress(parts.hostname, port, database, parts.scheme == "rediss", user, password)


class Redis:
    """One connection; opened at once."""

    def __init__(self, address: RedisAddress) -> None:
        self.address = address
        plain = socket.create_connection((address.host, address.port), timeout=SECONDS)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = (
            ssl.create_default_context().wrap_socket(plain, server_hostname=address.host) if address.is_tls else plain
        )
        self._answers = self._socket.makefile("rb")
        hello: list[Command] = []
        if address.password:
            hello.append(["AUTH", *([address.user] if address.user else []), address.password])
        if address.database:
            hello.append(["SELECT", str(address.database)])
        self.ask(*hello)

    def ask(self, *commands: Command) -> list[Any]:
        """The answers to commands that are sent together; the first that is an error is raised, after all were read."""
        self._socket.sendall(b"".join(_encoded(command) for command in commands))
        answers = [self._answer() for _ in commands]
        for answer in answers:
            for each in answer if isinstance(answer, list) else [answer]:
                if isinstance(each, Refused):
                    raise each
        return answers

    def close(self) -> None:
        """Hang up."""
        self._answers.close()
        self._socket.close()

    def _answer(self) -> Any:
        line = self._answers.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server hung up")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            return Refused(mask(rest.decode(errors="replace"), self.address.password))
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self._bytes(int(rest))
        if kind == b"*":
            return None if rest == b"-1" else [self._answer() for _ in range(int(rest))]
        return rest

    def _bytes(self, size: int) -> bytes:
        data = self._answers.read(size + 2)
        if len(data) != size + 2:
            raise ConnectionError("the server hung up")
        return data[:-2]


def _encoded(command: Command) -> bytes:
    pieces = [b"*%d\r\n" % len(command)]
    for word in command:
        data = word.encode("utf-8") if isinstance(word, str) else word
        pieces.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(pieces)
