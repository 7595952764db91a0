"""Fixtures for all tests: PostgreSQL servers and databases, Spark, comparisons, a clean environment."""

from __future__ import annotations

import gc
import itertools
import json
import os
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from hypothesis import HealthCheck, settings

import trueup
from support.class_archive import start_archive, use_test_cache
from support.data_copies import copy_data_folders
from support.expressions import Spied
from support.fixtures import Compare, Databases, FreshServer, OnAll, ReportOf, Spark
from support.passwords import VARIABLE, use_password_file
from support.run_guard import start_guard
from support.sessions import close_sessions, keep_sessions
from support.spark import INTERPRETED, ROOMY
from trueup.report.model import DiffResult
from trueup.testing import postgres
from trueup.testing.postgres import Database, Server

# Read before any test runs: the fixture below removes all such variables.
PG_BIN = os.environ.get("TRUEUP_TEST_PG_BIN") or None
SKIPS_FAIL = bool(os.environ.get("CI")) and not os.environ.get("TRUEUP_TEST_ALLOW_SKIPS")

# In CI the examples are the same in every run; elsewhere new ones are tried.
# No deadline, also for finding an example: a test must not fail because the machine is busy.
settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("elsewhere", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci" if os.environ.get("CI") else "elsewhere")

postgres.SETTINGS = {
    **postgres.SETTINGS,
    # Statistics, plans and numbers of transactions must not depend on when autovacuum looks at a table.
    "autovacuum": "off",
    # Each new database is a checkpoint, after which whole pages are logged. Only a crash of the machine needs them.
    "full_page_writes": "off",
    "wal_init_zero": "off",
    "checkpoint_timeout": "1h",
}

# A shell starts background jobs, and nohup, with SIGINT ignored. Programs that tests stop with it would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests start hundreds of commands: each would compile trueup again, which takes longer than to run it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Each process that imports numpy would start a thread per core, which waits actively.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_numbers = itertools.count(1)


def _memory_has_room(folder: str) -> bool:
    """Return whether a file system in memory exists, can run programs, and leaves enough memory."""
    try:
        place = os.statvfs(folder)
    except OSError:
        return False
    available = psutil.virtual_memory().available
    return not place.f_flag & os.ST_NOEXEC and min(place.f_bavail * place.f_frsize, available) > 6 * 2**30


# With its files in memory, a database is created in a tenth of the time.
# Read by pytest, by the servers, and by all processes that tests start.
if "TMPDIR" not in os.environ and _memory_has_room("/dev/shm"):
    os.environ["TMPDIR"] = tempfile.tempdir = "/dev/shm"


use_test_cache()
use_password_file()
copy_data_folders()
keep_sessions()


# Groups of tests that share a fixture which is slow to start: group name and fixture. The longest first.
_GROUPS = {"spark": "spark", "cluster": "spark_cluster"}
# The tests of the version log are half of those with Spark: in a group of their own, with a second Spark.
_VERSION_LOG = "difflog"
# Folders of the slowest files, which come before the others: a slow file at the end would keep one process busy alone.
_SLOW = ("/integration/validate/", "/integration/sync/", "/integration/switchover/", "/integration/", "/cli/")


def pytest_configure(config: pytest.Config) -> None:
    """Start the guard of this run, once: in the process that the user started, not in the workers of xdist."""
    if not hasattr(config, "workerinput"):
        # Before the guard, which would end the process that makes the archive together with this run.
        if not all("unit" in Path(argument).parts for argument in config.args):
            start_archive()
        config.stash[pytest.StashKey[object]()] = start_guard()


@pytest.fixture(autouse=True)
def _clean_environment(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[None]:
    """Isolate tests from the settings and the folders of the user, and from the Spark session of other tests."""
    if "pyspark" in sys.modules and not _uses_spark(request.node):
        monkeypatch.setattr("trueup.engine.lasting.session_of_program", lambda settings: None)
    for name in list(os.environ):
        if name.startswith(("TRUEUP_", "PG")) and name != VARIABLE:
            monkeypatch.delenv(name)
    monkeypatch.setenv("TRUEUP_TASKS_DB", str(tmp_path / "tasks.db"))
    monkeypatch.chdir(tmp_path)
    yield
    close_sessions()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The shared PostgreSQL server of the run: do not stop it or change its settings."""
    with Server.start(name="tests", bin_dir=PG_BIN) as started:
        # The first session writes a file that new databases are copied with, and their sessions start faster.
        started.database("template1").execute("SELECT")
        close_sessions()
        yield started


@pytest.fixture
def databases(server: Server) -> Iterator[Databases]:
    """`databases(count)`: create new databases, which are dropped after the test."""
    created: list[Database] = []
    # Copied as files, as before PostgreSQL 15: the default writes everything to the log first, which takes longer.
    options = " STRATEGY file_copy" if (server.data_dir / "PG_VERSION").read_text() >= "15" else ""

    def create(count: int) -> list[Database]:
        fresh = [server.database(f"test_{os.getpid()}_{next(_numbers)}") for _ in range(count)]
        created.extend(fresh)
        _execute_each(server, [f"CREATE DATABASE {database.name}{options}" for database in fresh])
        return fresh

    yield create
    _execute_each(server, [f"DROP DATABASE IF EXISTS {database.name} WITH (FORCE)" for database in created])


def _execute_each(server: Server, statements: Sequence[str]) -> None:
    """Run statements that cannot be in a transaction, in one session: a new one takes as long as half of them."""
    if statements:
        with psycopg.connect(server.uri(), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())


@pytest.fixture
def spied(databases: Databases) -> Iterator[Spied]:
    """A database with functions, types and operators of another role, whose calls are counted."""
    database = Spied(databases(1)[0])
    yield database
    database.remove()


@pytest.fixture
def fresh_server() -> Iterator[FreshServer]:
    """`fresh_server(**options of Server.start)`: start a server for this test only, which it may stop or kill."""
    started: list[Server] = []

    def start(folder: Path | None = None, **options: Any) -> Server:
        options.setdefault("bin_dir", PG_BIN)
        started.append(Server.start(folder, **options))
        return started[-1]

    yield start
    for server in started:
        server.remove()


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let validations of this process look for changes more often: tests wait for what they find."""
    monkeypatch.setattr("trueup.verbs.validate.triggers.tubes.IDLE_SECONDS", 0.4)
    monkeypatch.setattr("trueup.verbs.validate.validator.HEALTH_SECONDS", 1.0)


@pytest.fixture
def compare() -> Compare:
    """`compare(databases, table, **options)`: a diff (`quick=True`: a check) of nodes n1, n2, …, without waits."""

    def run(nodes: Sequence[Database], table: str, *, quick: bool = False, **options: Any) -> DiffResult:
        options = {"recheck": 1, "recheck_wait": 0, "engine": "local", **options}
        addresses = {f"n{number}": node.uri for number, node in enumerate(nodes, 1)}
        verb = trueup.check if quick else trueup.diff
        return verb(table, nodes=addresses, **options)

    return run


@pytest.fixture
def on_all() -> OnAll:
    """`on_all(databases, sql)`: run the same statements on every database."""

    def run(nodes: Sequence[Database], statements: str) -> None:
        for node in nodes:
            node.execute(statements)

    return run


@pytest.fixture
def report_of() -> ReportOf:
    """`report_of(result)`: the JSON report of a result, parsed."""

    def read(result: DiffResult) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(Path(result.report).read_text(encoding="utf-8"))
        return report

    return read


@pytest.fixture(scope="session")
def spark() -> Iterator[Spark]:
    """The shared Spark session of the run; verbs with engine="spark" use it."""
    from trueup.engine.jvm import start_callbacks, stop_session
    from trueup.engine.session import lasting_conf, start_session

    # Workers import functions of test modules; they do not import from the working folder.
    tests = Path(__file__).parent
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(tests.parent), str(tests), os.environ.get("PYTHONPATH")))
    )
    # Tables of a few rows: more partitions, and compiling each query, would only cost time. Tests that start Spark as a
    # user does compile them; tests/spark/difflog/test_cluster.py compares the results.
    conf = {**lasting_conf(), "spark.sql.shuffle.partitions": "2", **INTERPRETED, **ROOMY}
    session = start_session(slots=2, conf=conf)
    # The server for foreachBatch waits with select(), which fails for file descriptors from 1024 on, and every thread
    # of an embedded ClickHouse has three: start it before that number is reached.
    start_callbacks(session)
    yield session
    stop_session(session)


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> str:
    """The engine of a test with the mark `both_engines`."""
    name: str = request.param
    if name == "spark":
        request.getfixturevalue("spark")
    return name


def _uses_spark(item: pytest.Item) -> bool:
    """Return whether a test uses the shared Spark session."""
    call = getattr(item, "callspec", None)
    return "spark" in getattr(item, "fixturenames", ()) or (call is not None and call.params.get("engine") == "spark")


# Before xdist, which reads the marks.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Assign tests to groups, so that Spark starts twice and the cluster once: one worker runs all tests of a group.

    The slow groups come first, and the rest fills the time of the worker that finishes first. The order of xdist
    (by number of tests) would run them last: hence --no-loadscope-reorder in the Makefile.
    """
    fixtures_of_file: dict[Path, set[str]] = defaultdict(set)
    for item in items:
        fixtures_of_file[item.path] |= set(getattr(item, "fixturenames", ()))
    groups = [_VERSION_LOG, *_GROUPS]
    order = {}
    for item in items:
        is_spark = "/spark/" in str(item.path)
        fixtures = fixtures_of_file[item.path] if is_spark else set(getattr(item, "fixturenames", ()))
        fixtures = {*fixtures, "spark"} if _uses_spark(item) else fixtures
        group = next((name for name, fixture in _GROUPS.items() if fixture in fixtures), str(item.path))
        if group == "spark" and "/difflog/" in str(item.path):
            group = _VERSION_LOG
        item.add_marker(pytest.mark.xdist_group(group))
        speed = next((number for number, folder in enumerate(_SLOW) if folder in str(item.path)), len(_SLOW))
        order[item] = (groups.index(group) if group in groups else len(groups), not is_spark, speed)
    items.sort(key=lambda item: order[item])


def pytest_collection_finish() -> None:
    """Exclude what was imported from garbage collection: it would visit hundreds of thousands of objects each time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: Sequence[str]) -> None:
    """Stop if xdist ignores the groups: it would start Spark in every worker, without a message."""
    if node.config.getvalue("dist") == "loadgroup" and not all("@" in test_id for test_id in ids):
        message = "this xdist ignores the groups of this pytest: install the versions in constraints.txt"
        pytest.exit(message, returncode=4)


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
