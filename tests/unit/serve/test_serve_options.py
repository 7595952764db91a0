"""The rules for addresses and tokens: nothing is open that the user did not ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trueup.errors import ConfigError
from trueup.serve.options import ServeOptions, read_tokens

TOKENS = (("ann", b"x" * 32),)


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
        ({"allow_actions": True, "proxy_header": "X-User"}, ""),
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
