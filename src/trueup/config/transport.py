"""Refuse to send a password over a connection that is not encrypted."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterable
from urllib.parse import urlsplit

from trueup.config.secrets import find_secrets
from trueup.errors import ConfigError

_log = logging.getLogger(__name__)


def check_transport(server: str, hosts: Iterable[str], *, encrypted: str, insecure: bool) -> None:
    """Raise ConfigError if a host is on another machine; with `insecure`, log a warning instead.

    For connections with a password and without TLS. `encrypted` is the way to write an encrypted address.
    """
    remote = [host for host in hosts if not is_local_host(host)]
    if not remote:
        return
    problem = f"the password for {server} would be sent unencrypted to {', '.join(remote)}"
    if not insecure:
        raise ConfigError(problem, cure=f"use TLS ({encrypted}), or accept it with --insecure")
    _log.warning("%s, as --insecure allows", problem.replace("would be", "is"))


def sends_login_openly(address: str) -> bool:
    """Whether a request to an address of HTTP sends a password or a token, unencrypted, to another machine."""
    split = urlsplit(address)
    has_login = "@" in split.netloc or bool(find_secrets(address))
    return has_login and split.scheme == "http" and not is_local_host(split.hostname or "")


def is_local_host(host: str) -> bool:
    """Whether a name or an address is one of this machine; a path is a Unix socket."""
    name = host.lower().rstrip(".")
    if not name or name.startswith("/") or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
