"""With "auto", threads begin and Spark takes over: one result, within the limits, whatever happens to Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import psycopg
import pytest

import trueup
from trueup.engine import choose, handover
from trueup.engine.local import answers_of
from trueup.engine.slots import Share
from trueup.engine.spark import SparkEngine
from trueup.errors import Interrupted
from trueup.report.text import summary
from trueup.store import TaskStore
from trueup.testing.processes import wait_until

if TYPE_CHECKING:
    from support.fixtures import Compare, Databases, OnAll, ReportOf, Spark
    from trueup.testing.postgres import Database

TABLE = """
    CREATE TABLE items (id bigint PRIMARY KEY, name text);
    INSERT INTO items SELECT i, 'item ' || i FROM generate_series(1, 2000) i;
    ANALYZE items;
"""
DRIFT = "UPDATE items SET name = 'x' WHERE id % 97 = 0; DELETE FROM items WHERE id % 499 = 0"
BLOCKS: dict[str, Any] = {"block_size": 50, "compare_unit_size": 10, "override_block_size": True}
LOCK = 4711
# While the test has the lock, a statement that hashes rows waits for each row: a short time in the first blocks, so
# that the rate is known soon, and a longer time in the others. Other statements do not wait.
WAITING = (
    "current_query() NOT LIKE '%hash_' || 'record%' OR pg_try_advisory_xact_lock_shared(4711)"
    " OR pg_sleep(CASE WHEN id <= 200 THEN 0.01 ELSE 0.04 END) IS NOT NULL"
)
FUNCTIONS = "pg_sleep,current_query,pg_try_advisory_xact_lock_shared"


@pytest.fixture
def handed_over(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the shared session take over after a few blocks: until it is ready, no more of them are compared."""
    monkeypatch.setattr(handover, "MEASURED_SECONDS", 0.0)
    monkeypatch.setattr(handover, "WORTH_SECONDS", 0.0)
    monkeypatch.setattr(choose, "existing_session", lambda: None)
    monkeypatch.setattr(choose, "start_session", lambda **options: spark)
    monkeypatch.setenv("TRUEUP__SPARK__LOCAL_SECONDS", "0")
    ready, first = threading.Event(), iter(range(4))

    class Shared(SparkEngine):
        def __init__(self, session: Spark, share: Share, *, owned: bool) -> None:
            super().__init__(session, share, owned=False)

        def warm_up(self, work: Any) -> None:
            super().warm_up(work)
            ready.set()

    def limited(work: Any, task: Any) -> list[Any]:
        if next(first, None) is None:
            assert ready.wait(240)
        return answers_of(work, task)

    monkeypatch.setattr(choose, "SparkEngine", Shared)
    monkeypatch.setattr(handover, "answers_of", limited)


class Stopping:
    """Progress that is interrupted after some blocks."""

    def __init__(self, blocks: int) -> None:
        self._left = blocks

    def stage(self, name: str, total: int) -> None: ...

    def say(self, text: str) -> None: ...

    def wait(self, reason: str) -> None: ...

    def close(self) -> None: ...

    def advance(self, steps: int = 1, *, rows: int = 0, more: int = 0, stage: str = "") -> None:
        self._left -= steps if rows else 0
        if self._left < 0:
            raise KeyboardInterrupt


class Sessions:
    """The largest number of sessions that runs have with a node at the same time."""

    def __init__(self, node: Database) -> None:
        self.most = 0
        self._node = node
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Sessions:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND application_name LIKE 'trueup %%'"
        with psycopg.connect(self._node.server.database("postgres").uri, autocommit=True) as connection:
            while not self._done.wait(0.002):
                row = connection.execute(query, [self._node.name]).fetchone()
                self.most = max(self.most, row[0] if row else 0)


def test_one_result_of_both_engines(
    handed_over: None, databases: Databases, on_all: OnAll, compare: Compare, report_of: ReportOf
) -> None:
    nodes = databases(2)
    on_all(nodes, TABLE.replace("2000", "1000"))
    nodes[1].execute(DRIFT)
    local = compare(nodes, "items", **BLOCKS)
    with Sessions(nodes[0]) as sessions:
        both = compare(nodes, "items", engine="auto", max_connections=3, output="json,html", **BLOCKS)
    assert (both.pairs, both.rows, both.blocks, both.verdict) == (local.pairs, local.rows, local.blocks, "DIFFER")
    assert (local.engine, local.ran_on) == ("local", {"local": local.blocks})
    assert (both.engine, list(both.ran_on), sum(both.ran_on.values())) == (
        "local+spark",
        ["local", "spark"],
        both.blocks,
    )
    assert both.ran_on["spark"] > both.ran_on["local"]
    share = (
        f"local+spark (local {both.ran_on['local'] / both.blocks:.1%}, spark {both.ran_on['spark'] / both.blocks:.1%})"
    )
    assert f", engine {share}\n" in summary(both)
    assert share in Path(both.page).read_text(encoding="utf-8")
    assert report_of(both)["summary"]["ran_on"] == both.ran_on
    assert not both.remarks
    assert sessions.most <= 3
    # Ctrl-C after the hand-over: the rest is compared by a resumed run, and nothing twice.
    with pytest.raises(Interrupted):
        compare(nodes, "items", engine="auto", progress=Stopping(local.blocks // 2), **BLOCKS)
    with TaskStore() as store:
        task = store.list()[0]
    addresses = {f"n{number}": node.uri for number, node in enumerate(nodes, 1)}
    resumed = trueup.resume(task.task_id, nodes=addresses)
    assert (resumed.pairs, resumed.rows, resumed.blocks, resumed.verdict) == (
        local.pairs,
        local.rows,
        local.blocks,
        "DIFFER",
    )
    assert 0 < sum(resumed.ran_on.values()) <= local.blocks // 2


def test_many_tables(handed_over: None, databases: Databases, on_all: OnAll) -> None:
    nodes = databases(2)
    for name in ("items", "others"):
        on_all(nodes, TABLE.replace("items", name))
    on_all(nodes, "CREATE TABLE small (id int PRIMARY KEY); INSERT INTO small VALUES (1)")
    nodes[1].execute(DRIFT)
    options: dict[str, Any] = {"nodes": {"n1": nodes[0].uri, "n2": nodes[1].uri}, "engine": "auto", "recheck": 0}
    with Sessions(nodes[0]) as sessions:
        result = trueup.diff_many(tables=["public.*"], max_connections=8, **options, **BLOCKS)
    found = {table.table: (table.verdict, table.rows_checked, table.differences) for table in result.tables}
    assert found == {
        "public.items": ("DIFFER", 2000, 24),
        "public.others": ("MATCH", 2000, 0),
        "public.small": ("MATCH", 1, 0),
    }
    assert sessions.most <= 8


@contextmanager
def running(nodes: list[Database], *options: str) -> Iterator[subprocess.Popen[str]]:
    """Start a diff that waits for each row while the test has the lock of all nodes."""
    command = [sys.executable, "-m", "trueup", "diff", "items", "--json", "--block-size", "50", "--override-block-size"]
    command += ["--filter", WAITING, "--allow-functions", FUNCTIONS, "--recheck", "0", *options]
    for number, node in enumerate(nodes, 1):
        command += ["--node", f"n{number}={node.uri}"]
    # Ctrl-C is ignored by what a shell has started in the background.
    heard = "import signal, os; signal.signal(signal.SIGINT, signal.default_int_handler)"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{heard}; os.execv({sys.executable!r}, {command!r})"],
        env={**os.environ, "TRUEUP__SPARK__LOCAL_SECONDS": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def locked(nodes: list[Database]) -> Iterator[Callable[[], None]]:
    """Hold the lock of all nodes, until the function is called."""
    connections = [psycopg.connect(node.uri, autocommit=True) for node in nodes]
    try:
        for connection in connections:
            connection.execute("SELECT pg_advisory_lock(%s)", [LOCK])

        def unlock() -> None:
            for connection in connections:
                connection.execute("SELECT pg_advisory_unlock_all()")

        yield unlock
    finally:
        for connection in connections:
            connection.close()


def children_of(process: psutil.Process) -> list[psutil.Process]:
    """Return the processes that a process has started; none if it has ended."""
    try:
        return list(process.children(recursive=True))
    except psutil.Error:
        return []


def java_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the Java processes of a command."""
    found = []
    for child in children_of(psutil.Process(process.pid)):
        try:
            found += [child] if child.name() == "java" else []
        except psutil.Error:
            continue
    return found


def test_a_jvm_that_hangs_after_the_hand_over(
    databases: Databases, on_all: OnAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed when that is noticed, and threads compare what Spark has not compared."""
    # Longer than a block that waits.
    monkeypatch.setenv("TRUEUP__SPARK__STALL_SECONDS", "6")
    nodes = databases(2)
    on_all(nodes, TABLE)
    nodes[1].execute(DRIFT)
    others = nodes[0].server.database("postgres")
    of_workers = "SELECT client_port FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = %s"

    with locked(nodes) as unlock, running(nodes) as process:

        def is_on_spark() -> bool:
            ports = {port for (port,) in others.execute(of_workers, (nodes[0].name,))}
            return any(is_connected(worker, ports) for java in java_of(process) for worker in children_of(java))

        assert wait_until(lambda: process.poll() is not None or is_on_spark(), 120)
        assert process.poll() is None, process.communicate()
        (java,) = java_of(process)
        secrets = " ".join(java.cmdline())
        assert nodes[0].uri not in secrets
        java.suspend()
        unlock()
        out, err = process.communicate(timeout=90)
        assert wait_until(lambda: not java.is_running(), 30)
    assert process.returncode == 1, err
    result = json.loads(out)
    assert (result["verdict"], result["rows_checked"], result["pairs"]["n1/n2"]["missing"]) == ("DIFFER", 2000, 4)
    assert result["blocks"] == sum(result["ran_on"].values())
    lost = "Spark was lost, and threads of this process do the rest of the work: no task of the Spark job was"
    assert [text[: len(lost)] for text in result["remarks"]] == [lost]
    assert lost in err
    assert "Traceback" not in err


def is_connected(worker: psutil.Process, ports: set[int]) -> bool:
    """Whether a process has one of these ports."""
    try:
        return any(each.laddr and each.laddr.port in ports for each in worker.net_connections())
    except psutil.Error:
        return False


def test_a_jvm_that_is_killed_while_it_starts(databases: Databases, on_all: OnAll) -> None:
    nodes = databases(2)
    on_all(nodes, TABLE)
    with locked(nodes) as unlock, running(nodes) as process:
        lines: list[str] = []
        assert process.stderr is not None
        reader = threading.Thread(target=lambda: lines.extend(process.stderr or ()))
        reader.start()

        def is_given_up() -> bool:
            for java in java_of(process):
                java.kill()
            return process.poll() is not None or any("Spark was not started" in line for line in lines)

        assert wait_until(is_given_up, 120), lines
        unlock()
        assert process.stdout is not None
        result = json.loads(process.stdout.read())
        process.wait(60)
        reader.join()
    assert (result["verdict"], result["rows_checked"], result["engine"]) == ("MATCH", 2000, "local")
    assert result["remarks"][0].startswith("Spark was not started, and threads of this process do all the work: ")


def test_ctrl_c_ends_a_start(databases: Databases, on_all: OnAll) -> None:
    nodes = databases(2)
    on_all(nodes, TABLE)
    with locked(nodes), running(nodes) as process:
        assert wait_until(lambda: process.poll() is not None or bool(java_of(process)), 120)
        java = java_of(process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert wait_until(lambda: not any(each.is_running() for each in java), 30)
    assert process.returncode == 130, err
    assert "--resume" in err
    assert "Spark" not in err
    assert "Traceback" not in err
