"""Fixtures for all tests: PostgreSQL servers and databases, a clean environment, a count of the skipped."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trueup.demo.postgres import Database, Server

# Read before any test runs: the fixture below takes all such variables away.
PG_BIN = os.environ.get("TRUEUP_TEST_PG_BIN") or None
SKIPS_FAIL = bool(os.environ.get("CI")) and not os.environ.get("TRUEUP_TEST_ALLOW_SKIPS")

_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the user's settings reaches a test, and nothing a test writes reaches the user's folders."""
    for name in list(os.environ):
        if name.startswith(("TRUEUP_", "PG")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TRUEUP_TASKS_DB", str(tmp_path / "tasks.db"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The one PostgreSQL server of the run: do not stop it, nor change its settings."""
    with Server.start(name="tests", bin_dir=PG_BIN) as started:
        yield started


@pytest.fixture
def databases(server: Server) -> Iterator[Callable[[int], list[Database]]]:
    """A function that makes so many fresh databases; they are dropped after the test."""
    made: list[Database] = []

    def make(count: int) -> list[Database]:
        fresh = [server.create_database(f"test_{os.getpid()}_{next(_numbers)}") for _ in range(count)]
        made.extend(fresh)
        return fresh

    yield make
    for database in made:
        database.drop()


@pytest.fixture
def fresh_server() -> Iterator[Callable[..., Server]]:
    """A function that starts a server of the test's own (arguments of Server.start), to be killed at will."""
    started: list[Server] = []

    def start(folder: Path | None = None, **options: Any) -> Server:
        options.setdefault("bin_dir", PG_BIN)
        started.append(Server.start(folder, **options))
        return started[-1]

    yield start
    for one in started:
        one.remove()


def _skipped(config: pytest.Config) -> int:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return len(reporter.stats.get("skipped", [])) if reporter is not None else 0


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    count = _skipped(config)
    terminalreporter.write_line(f"skipped tests: {count}", red=bool(count) and SKIPS_FAIL)
    if count and SKIPS_FAIL:
        terminalreporter.write_line("In CI no test may be skipped (TRUEUP_TEST_ALLOW_SKIPS=1 allows it).", red=True)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if SKIPS_FAIL and _skipped(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
