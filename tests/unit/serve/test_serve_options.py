"""The rules for addresses and tokens: nothing is open that the user did not ask for."""

from __future__ import annotations

import socket
from hashlib import sha256
from pathlib import Path
from typing import Any

import psutil
import pytest

from trueup.errors import ConfigError
from trueup.serve.options import ServeOptions, read_secret, read_tokens
from trueup.serve.publish import push_metrics

TOKENS = (("ann", b"x" * 32),)
# All addresses of this machine.
OWN = tuple(each.address for found in psutil.net_if_addrs().values() for each in found if each.family == socket.AF_INET)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, ""),
        ({"host": "::1"}, ""),
        ({"host": "127.8.8.8"}, ""),
        ({"host": "localhost"}, ""),
        ({"host": "0.0.0.0"}, "requests need no token"),
        ({"host": "::"}, "requests need no token"),
        ({"host": "db.example.com", "insecure": True}, "requests need no token"),
        ({"host": "10.0.0.5", "tokens": TOKENS}, "not encrypted"),
        ({"host": "10.0.0.5", "proxy_header": "X-User"}, "not encrypted"),
        ({"host": "10.0.0.5", "tokens": TOKENS, "insecure": True}, ""),
        ({"tls_cert": "x"}, "belong together"),
        ({"tls_cert": "x", "tls_key": "y"}, "no such file"),
        ({"allow_actions": True}, "who acts"),
        ({"allow_actions": True, "proxy_header": "X-User"}, "every user of this machine can send X-User"),
        ({"allow_actions": True, "proxy_header": "X-User", "tokens": TOKENS}, "every user of this machine"),
        ({"allow_actions": True, "proxy_header": "X-User", "proxies": ("192.0.2.7", "::1")}, "every user of this"),
        ({"allow_actions": True, "proxy_header": "X-User", "proxies": OWN}, "every user of this machine"),
        ({"allow_actions": True, "proxy_header": "X-User", "proxies": ("192.0.2.7",)}, ""),
        ({"allow_actions": True, "proxy_header": "X-User", "proxy_secret": b"x"}, ""),
        ({"allow_actions": True, "tokens": TOKENS}, ""),
        ({"tokens": TOKENS, "proxy_secret": b"x"}, "for the proxy that names the user"),
        ({"proxies": ("proxy",)}, "not an IP address"),
    ],
)
def test_addresses(options: dict[str, Any], problem: str) -> None:
    chosen = ServeOptions(**options)
    if problem:
        with pytest.raises(ConfigError, match=problem):
            chosen.checked()
    else:
        assert chosen.checked() is chosen


def test_hosts() -> None:
    assert ServeOptions().hosts == {"127.0.0.1", "localhost", "[::1]"}
    assert ServeOptions(host="10.0.0.5", allowed_hosts=("Watch.example",)).hosts == {"10.0.0.5", "watch.example"}
    assert "[::1]" in ServeOptions(host="::1").hosts


def test_tokens(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("# tokens\nann 0123456789abcdef\n\nbob fedcba9876543210\n")
    file.chmod(0o600)
    assert [name for name, _ in read_tokens(str(file))] == ["ann", "bob"]
    file.write_text("0123456789abcdef0123\n")
    assert [name for name, _ in read_tokens(str(file))] == ["token"]
    for wrong in ("", "short\n", "a b c\n", "ann 0123456789abcdef\nann 0123456789abcdef\n"):
        file.write_text(wrong)
        with pytest.raises(ConfigError) as caught:
            read_tokens(str(file))
        assert "0123456789" not in str(caught.value)
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="other users can read"):
        read_tokens(str(file))
    with pytest.raises(ConfigError, match="cannot read"):
        read_tokens(str(tmp_path / "missing"))


def test_the_secret_of_a_proxy(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("0123456789abcdef\n")
    file.chmod(0o600)
    assert read_secret(str(file)) == sha256(b"0123456789abcdef").digest()
    for wrong in ("", "short", "a b", "0123456789abcdef\n0123456789abcdef"):
        file.write_text(wrong)
        with pytest.raises(ConfigError, match="has no secret"):
            read_secret(str(file))
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="other users can read"):
        read_secret(str(file))


def test_metrics_are_not_pushed_with_an_open_password() -> None:
    with pytest.raises(ConfigError, match="the log-in would be sent unencrypted") as caught:
        push_metrics("http://me:hunter2@push.example.com:9091", b"")
    assert "hunter2" not in f"{caught.value} {caught.value.cure}"
