"""Fixtures for all tests: PostgreSQL servers and databases, Spark, comparisons, a clean environment, the skipped."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import trueup
from support.fixtures import Compare
from trueup.report.model import DiffResult
from trueup.testing.postgres import Database, Server

# Read before any test runs: the fixture below takes all such variables away.
PG_BIN = os.environ.get("TRUEUP_TEST_PG_BIN") or None
SKIPS_FAIL = bool(os.environ.get("CI")) and not os.environ.get("TRUEUP_TEST_ALLOW_SKIPS")

# Where a red run stops others, the examples are the same each time; elsewhere new ones are tried.
# None is timed: a busy machine is no defect.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("elsewhere", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "elsewhere")

_numbers = itertools.count(1)


def _memory_has_room(folder: str) -> bool:
    """Whether a file system in memory is there, lets programs run, and leaves memory for all else."""
    try:
        place = os.statvfs(folder)
        facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    except OSError:
        return False
    available = int(facts["MemAvailable"].split()[0]) * 1024
    return not place.f_flag & os.ST_NOEXEC and min(place.f_bavail * place.f_frsize, available) > 6 * 2**30


# Nothing here has to outlive the machine: with its files in memory, a database is made in a tenth of the time.
# Read by pytest, by the servers, and by all processes that tests start.
if "TMPDIR" not in os.environ and _memory_has_room("/dev/shm"):
    os.environ["TMPDIR"] = tempfile.tempdir = "/dev/shm"


# Tests that share something that takes long to start, by the fixture that has it.
_GROUPS = {"spark": "spark", "cluster": "spark_cluster"}


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


def _fresh(server: Server, name: str) -> Database:
    # Copied as files, as before PostgreSQL 15: writing it all to the log first takes longer.
    options = "STRATEGY file_copy" if (server.data_dir / "PG_VERSION").read_text() >= "15" else ""
    server.database("postgres").execute(f"CREATE DATABASE {name} {options}")
    return server.database(name)


@pytest.fixture
def databases(server: Server) -> Iterator[Callable[[int], list[Database]]]:
    """A function that makes so many fresh databases; they are dropped after the test."""
    made: list[Database] = []

    def make(count: int) -> list[Database]:
        fresh = [_fresh(server, f"test_{os.getpid()}_{next(_numbers)}") for _ in range(count)]
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


@pytest.fixture
def compare() -> Compare:
    """`compare(databases, table, **options)`: a diff (`quick=True`: a check) of nodes n1, n2, …, with no waiting."""

    def run(nodes: Sequence[Database], table: str, *, quick: bool = False, **options: Any) -> DiffResult:
        options = {"recheck": 1, "recheck_wait": 0, "engine": "local", **options}
        addresses = {f"n{number}": node.uri for number, node in enumerate(nodes, 1)}
        verb = trueup.check if quick else trueup.diff
        return verb(table, nodes=addresses, **options)

    return run


@pytest.fixture
def on_all() -> Callable[..., None]:
    """`on_all(databases, sql)`: the same statements on every database."""

    def run(nodes: Sequence[Database], statements: str) -> None:
        for node in nodes:
            node.execute(statements)

    return run


@pytest.fixture
def report_of() -> Callable[[DiffResult], dict[str, Any]]:
    """The JSON report of a result, read back."""

    def read(result: DiffResult) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(Path(result.report).read_text(encoding="utf-8"))
        return report

    return read


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The one Spark session of the run; verbs with engine="spark" find it and use it."""
    from trueup.engine.session import start_session

    # Tables of a few rows: each further partition would only cost time.
    session = start_session(slots=2, conf={"spark.sql.shuffle.partitions": "2"})
    yield session
    session.stop()


# First: afterwards xdist reads the marks.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Side by side, Spark and the cluster start once: one process has all tests of each. Other files are whole.

    The long ones come first, and the rest fills the time of the process that is done first (with xdist's own order,
    by the number of tests, it would come last: hence --no-loadscope-reorder in the Makefile).
    """
    needs: dict[Path, set[str]] = defaultdict(set)
    for item in items:
        needs[item.path] |= set(getattr(item, "fixturenames", ()))
    groups = {}
    for item in items:
        whole = "/spark/" in str(item.path)
        fixtures = needs[item.path] if whole else set(getattr(item, "fixturenames", ()))
        group = next((name for name, fixture in _GROUPS.items() if fixture in fixtures), str(item.path))
        item.add_marker(pytest.mark.xdist_group(group))
        groups[item] = (list(_GROUPS).index(group) if group in _GROUPS else len(_GROUPS), not whole)
    items.sort(key=lambda item: groups[item])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: Sequence[str]) -> None:
    """Without its groups, xdist would start all that is shared in every process, and say nothing."""
    if node.config.getvalue("dist") == "loadgroup" and not all("@" in each for each in ids):
        pytest.exit("xdist does not see the groups of this pytest: install what constraints.txt says", returncode=4)


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
