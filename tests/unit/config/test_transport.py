"""A password is not sent unencrypted to another machine unless the user accepts it."""

from __future__ import annotations

import logging
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from trueup.db.clickhouse import Server
from trueup.errors import ConfigError, NodeError
from trueup.sinks import open_sink
from trueup.verbs.difflog.clickhouse import open_target
from trueup.verbs.difflog.model import Target

REMOTE = [
    "redis://:hunter2@cache.example.com/0",
    "redis://u:hunter2@127.0.0.1,10.0.0.7/0?cluster=yes",
    "http://u:hunter2@10.0.0.7:9200/index",
]


@pytest.mark.parametrize("address", REMOTE)
def test_a_password_without_tls_is_refused(address: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match="unencrypted to") as caught:
        open_sink(address)
    assert "--insecure" in caught.value.cure
    assert "hunter2" not in f"{caught.value} {caught.value.cure}"
    with caplog.at_level(logging.WARNING):
        open_sink(address, {"insecure": "yes"})
    assert "is sent unencrypted" in caplog.text
    assert "hunter2" not in caplog.text


def test_a_key_in_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    open_sink("http://search.example.com:9200/index")
    monkeypatch.setenv("TRUEUP_SINK_API_KEY", "hunter2")
    with pytest.raises(ConfigError, match="unencrypted to"):
        open_sink("http://search.example.com:9200/index")


@pytest.mark.parametrize(
    "address",
    [
        "redis://cache.example.com/0",
        "rediss://:hunter2@cache.example.com/0",
        "redis://:hunter2@localhost/0",
        "redis://:hunter2@127.1.2.3/0",
        "redis://:hunter2@[::1]:6379/0",
        "https://u:hunter2@10.0.0.7:9200/index",
        "http://u:hunter2@LOCALHOST:9200/index",
    ],
)
def test_what_is_allowed(address: str) -> None:
    open_sink(address)


def test_clickhouse() -> None:
    url = "clickhouse://u:hunter2@clickhouse.invalid:8123/db"
    with pytest.raises(ConfigError, match="the password for ClickHouse would be sent unencrypted"):
        Server(url, urlsplit(url))
    # Accepted, encrypted, or without a password: it goes on to connect.
    with pytest.raises(NodeError, match="cannot be reached"):
        Server(url, urlsplit(url), insecure=True)
    for other in (url.replace("clickhouse://", "clickhouses://"), f"{url}?secure=true", url.replace(":hunter2", "")):
        with pytest.raises(NodeError, match="cannot be reached"):
            Server(other, urlsplit(other))


def test_difflog() -> None:
    target = Target(table="log", url="clickhouse://u:hunter2@clickhouse.invalid:8123/db")
    with pytest.raises(ConfigError, match="unencrypted"):
        open_target(target)
    with pytest.raises(NodeError):
        open_target(replace(target, insecure=True))
