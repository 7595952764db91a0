"""Fixtures for validations: two real servers, and two databases per test for logical replication."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from support.validate import PG_BIN, Copy
from trueup.testing.postgres import Server

_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def _short_pauses(short_pauses: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait less in all tests of this folder, and let no command start Spark."""
    monkeypatch.setenv("TRUEUP__SPARK__ENGINE", "local")


@pytest.fixture(scope="session")
def two_servers() -> Iterator[tuple[Server, Server]]:
    """Two servers, in two time zones."""
    with (
        Server.start(name="up", bin_dir=PG_BIN, settings={"timezone": "Asia/Kolkata"}) as up,
        Server.start(name="down", bin_dir=PG_BIN, settings={"timezone": "America/New_York"}) as down,
    ):
        yield up, down


@pytest.fixture
def copy(request: pytest.FixtureRequest, two_servers: tuple[Server, Server]) -> Iterator[Copy]:
    """Two new databases; the validation runs on the engine of the test."""
    number = next(_numbers)
    up, down = (server.create_database(f"{server.name}_{os.getpid()}_{number}") for server in two_servers)
    made = Copy(up, down)
    if "engine" in request.fixturenames:
        made.engine = request.getfixturevalue("engine")
    yield made
    made.remove()
