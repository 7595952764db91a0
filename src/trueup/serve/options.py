"""The options of the server, and the rules for addresses: loopback, or a token and TLS."""

from __future__ import annotations

import ipaddress
import os
import stat
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import psutil

from trueup.errors import ConfigError

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
_SHORTEST_TOKEN = 16
_NAME_OF_ONE = "token"


@dataclass(frozen=True)
class ServeOptions:
    """How the server is reached, and what it shows."""

    host: str = "127.0.0.1"
    port: int = 8470
    # Name of the user -> sha256 of the token; empty: no tokens.
    tokens: tuple[tuple[str, bytes], ...] = ()
    proxy_header: str = ""
    proxies: tuple[str, ...] = ("127.0.0.1", "::1")
    # sha256 of the secret that the proxy sends; empty: it sends none.
    proxy_secret: bytes = b""
    tls_cert: str = ""
    tls_key: str = ""
    insecure: bool = False
    # Names in the Host header of requests, besides the address itself.
    allowed_hosts: tuple[str, ...] = ()
    show_rows: bool = False
    allow_actions: bool = False
    interval: float = 5.0
    # Only /metrics and /healthz.
    only_metrics: bool = False

    @property
    def has_login(self) -> bool:
        """Whether requests need a token or a header of a proxy."""
        return bool(self.tokens or self.proxy_header)

    @property
    def knows_users(self) -> bool:
        """Whether the name of a user is proven: by a token, or by a proxy that no other program can pass for."""
        has_proven_proxy = bool(self.proxy_secret) or not any(map(_is_of_this_machine, self.proxies))
        return has_proven_proxy if self.proxy_header else bool(self.tokens)

    @property
    def has_tls(self) -> bool:
        """Whether the server speaks TLS."""
        return bool(self.tls_cert)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def hosts(self) -> frozenset[str]:
        """The names that a request may have in its Host header, in lower case, without the port."""
        own = f"[{self.host}]" if ":" in self.host else self.host
        named = LOOPBACK_NAMES if self.is_loopback else ()
        return frozenset(name.lower() for name in (own, *named, *self.allowed_hosts))

    def checked(self) -> ServeOptions:
        """Return the options, or raise ConfigError if they would open more than the user asked for."""
        if not self.is_loopback and not self.has_login:
            raise ConfigError(
                f"{self.host} can be reached from other machines, and requests need no token",
                cure="add --token-file FILE or --auth-proxy-header NAME, or listen on 127.0.0.1",
            )
        if not self.is_loopback and not self.has_tls and not self.insecure:
            raise ConfigError(
                f"{self.host} can be reached from other machines, and the connection is not encrypted",
                cure="add --tls-cert FILE and --tls-key FILE; or --insecure, if a proxy encrypts it",
            )
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("--tls-cert and --tls-key belong together", cure="give both files")
        if self.allow_actions and not self.has_login:
            raise ConfigError(
                "--allow-actions needs to know who acts: all users of this machine can connect",
                cure="add --token-file FILE, or --auth-proxy-header NAME and --proxy-secret-file FILE",
            )
        if self.allow_actions and not self.knows_users:
            raise ConfigError(
                f"--allow-actions needs to know who acts: every user of this machine can send {self.proxy_header}",
                cure="add --proxy-secret-file FILE, or name a proxy on another machine with --proxy-address",
            )
        if self.proxy_secret and not self.proxy_header:
            cure = "add --auth-proxy-header NAME, or leave it out"
            raise ConfigError("--proxy-secret-file is for the proxy that names the user", cure=cure)
        for path in filter(None, (self.tls_cert, self.tls_key)):
            if not Path(path).is_file():
                raise ConfigError(f"{path}: there is no such file", cure="check the path")
        for proxy in self.proxies:
            try:
                ipaddress.ip_address(proxy)
            except ValueError:
                cure = "write an address such as 10.0.0.7"
                raise ConfigError(f"--proxy-address: '{proxy}' is not an IP address", cure=cure) from None
        return self


def read_tokens(file: str) -> tuple[tuple[str, bytes], ...]:
    """Return the users of a token file with the hashes of their tokens: one `NAME TOKEN` per line, or only a token."""
    path, lines = _private_lines(file, "token")
    tokens: dict[str, bytes] = {}
    for number, line in lines:
        words = line.split()
        name, token = (_NAME_OF_ONE, words[0]) if len(words) == 1 else (words[0], words[1])
        if len(words) > 2 or len(token) < _SHORTEST_TOKEN or name in tokens:
            raise ConfigError(
                f"{path}: line {number} is not a token",
                cure=f"write a name and a token of at least {_SHORTEST_TOKEN} characters, each name once; make a token"
                " with: openssl rand -hex 24",
            )
        tokens[name] = sha256(token.encode()).digest()
    if not tokens:
        raise ConfigError(f"the token file {path} has no token", cure="make one with: openssl rand -hex 24 > FILE")
    return tuple(tokens.items())


def read_secret(file: str) -> bytes:
    """Return the hash of the secret of a proxy: the only line of a file."""
    path, lines = _private_lines(file, "secret")
    if len(lines) != 1 or len(lines[0][1].split()) != 1 or len(lines[0][1].strip()) < _SHORTEST_TOKEN:
        cure = f"write one word of at least {_SHORTEST_TOKEN} characters; make one with: openssl rand -hex 24 > FILE"
        raise ConfigError(f"the secret file {path} has no secret", cure=cure)
    return sha256(lines[0][1].strip().encode()).digest()


def _private_lines(file: str, kind: str) -> tuple[Path, list[tuple[int, str]]]:
    """Return the path and the lines of a file that no other user can read, with their numbers, without comments."""
    path = Path(file).expanduser()
    try:
        facts = path.stat()
        mode = stat.S_IMODE(facts.st_mode)
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"cannot read the {kind} file {path}: {error}", cure="check the path and its owner") from None
    if mode & 0o077:
        raise ConfigError(f"other users can read the {kind} file {path} (mode {mode:03o})", cure=f"chmod 600 {path}")
    if facts.st_uid not in (0, os.geteuid()):
        raise ConfigError(f"the {kind} file {path} belongs to another user", cure="use a file of your own")
    return path, [(number, line) for number, line in enumerate(lines, 1) if line.split() and line.split()[0][0] != "#"]


def _is_of_this_machine(address: str) -> bool:
    """Whether every user of this machine can send requests from an address."""
    try:
        if ipaddress.ip_address(address).is_loopback:
            return True
    except ValueError:
        # An error of its own.
        return False
    own = (each.address.partition("%")[0] for found in psutil.net_if_addrs().values() for each in found)
    return address in own
