"""Throttling on live nodes: small queries, a limit of rows per second, and pauses while a node is busy."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

import trueup
from support.fixtures import Databases, FreshServer, OnAll
from trueup.db.node import connect
from trueup.db.watch import Load, Watch, load_of
from trueup.engine.progress import Silent
from trueup.errors import ConfigError
from trueup.rows import digest as digest_module
from trueup.rows.digest import Digest
from trueup.task.steering import Budget, too_busy
from trueup.testing.postgres import Database, Server
from trueup.testing.processes import wait_until
from trueup.verbs.diff import hash as hashing

ROWS = 20_000
NOW = {"recheck": 1, "recheck_wait": 0}


@pytest.fixture
def nodes(databases: Databases, on_all: OnAll) -> list[Database]:
    """Two nodes; on the second one row is missing, one is extra, and one is changed."""
    pair: list[Database] = databases(2)
    on_all(
        pair,
        "CREATE TABLE t (id int PRIMARY KEY, v text);"
        f"INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, {ROWS}) i; ANALYZE t",
    )
    pair[1].execute("UPDATE t SET v = 'x' WHERE id = 5; DELETE FROM t WHERE id = 9000")
    pair[1].execute(f"INSERT INTO t VALUES ({ROWS + 1}, 'y')")
    return pair


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of every hashing query, in the order of their ends."""
    seen: list[int] = []
    original = digest_module.digest

    def digest(*arguments: Any, **options: Any) -> Digest:
        found = original(*arguments, **options)
        seen.append(found.count)
        return found

    monkeypatch.setattr(hashing, "digest", digest)
    return seen


class Reasons(Silent):
    """A progress object that records why the run waits, and ends the reason."""

    def __init__(self, cure: Callable[[], object]) -> None:
        self.reasons: list[str] = []
        self.messages: list[str] = []
        self._cure = cure

    def wait(self, reason: str) -> None:
        self.reasons.append(reason)
        if reason:
            self._cure()

    def say(self, text: str) -> None:
        self.messages.append(text)


def _addresses(nodes: list[Database]) -> dict[str, str]:
    return {f"n{number}": node.uri for number, node in enumerate(nodes, 1)}


def _diff(nodes: list[Database], **options: Any) -> trueup.DiffResult:
    return trueup.diff("t", nodes=_addresses(nodes), **{**NOW, **options})


def test_small_queries_return_the_same_result(
    nodes: list[Database], counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trueup.verbs.diff.blocks.FIRST_STEP", 300)
    result = _diff(nodes, gentle=True, gentle_seconds=0.01)
    assert result.engine == "local"
    assert result.rows == {"n1": ROWS, "n2": ROWS}
    counts = result.pairs["n1/n2"]
    assert (counts.changed, counts.missing, counts.extra) == (1, 1, 1)
    assert result.mismatched_blocks <= result.blocks
    assert sum(counted) == 2 * ROWS
    assert max(counted) < ROWS
    assert max(counted[:2]) <= 301


def test_the_size_of_queries_adapts_to_their_duration(
    nodes: list[Database], counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row takes a millisecond: queries start with 200 rows and shrink to about 50."""
    monkeypatch.setattr("trueup.verbs.diff.blocks.FIRST_STEP", 200)
    monkeypatch.setattr(hashing, "SMALLEST_STEP", 10)
    slow = "id BETWEEN 10 AND 409 AND pg_sleep(0.001) IS NOT NULL"
    result = _diff(nodes, gentle=True, gentle_seconds=0.05, filter=slow, allow_functions=["pg_sleep"], recheck=0)
    assert result.rows == {"n1": 400, "n2": 400}
    some = [count for count in counted if count]
    assert max(some) > 100
    assert max(some[-6:]) < 100
    assert len(some) < 100
    assert sum(some) == 800


def test_rows_per_second_are_limited(nodes: list[Database], counted: list[int]) -> None:
    started = time.monotonic()
    result = _diff(nodes, max_rows_per_second=10_000, recheck=0)
    seconds = time.monotonic() - started
    assert result.rows == {"n1": ROWS, "n2": ROWS}
    # Up to one second of the limit is saved, the first query is free, and differing rows are read three times.
    assert max(counted) <= 5_001
    assert seconds >= (ROWS - 10_000 - 5_000) / 10_000


def test_a_limit_below_the_smallest_query_is_kept(nodes: list[Database], counted: list[int]) -> None:
    result = _diff(nodes, max_rows_per_second=60, filter="id BETWEEN 10 AND 60", recheck=0)
    assert result.rows == {"n1": 51, "n2": 51}
    assert max(counted) <= 31


def test_the_rate_is_limited_in_every_interval() -> None:
    now = 0.0
    budget = Budget(100, clock=lambda: now)
    assert not budget.is_spent()
    budget.spend(250)
    now = 2.0
    assert budget.is_spent()
    now = 2.6
    assert not budget.is_spent()
    # After a long idle time, one second of the limit is saved, not more.
    now = 1000.0
    assert not budget.is_spent()
    budget.spend(101)
    assert budget.is_spent()
    assert not Budget(0).is_spent()


@contextmanager
def _busy(node: Database, statement: str) -> Iterator[psycopg.Connection[Any]]:
    """Run a statement in a session of an application until it is cancelled or ends."""
    with psycopg.connect(node.uri, application_name="the application") as connection:

        def work() -> None:
            with suppress(psycopg.errors.QueryCanceled):
                connection.execute(statement)

        thread = threading.Thread(target=work)
        thread.start()
        yield connection
        connection.cancel_safe()
        thread.join()


def test_it_waits_while_many_sessions_are_active(nodes: list[Database]) -> None:
    active = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'the application' AND state = 'active'"
    with _busy(nodes[1], "SELECT pg_sleep(100)") as busy:
        assert wait_until(lambda: nodes[0].execute(active) == [(1,)], 60)
        progress = Reasons(busy.cancel_safe)
        result = _diff(nodes, gentle=True, max_active_sessions=0, progress=progress)
    assert result.verdict == "DIFFER"
    assert "active (limit 0)" in progress.reasons[0]
    assert progress.reasons[-1] == ""
    assert any(text.startswith("continued after") for text in progress.messages)


def test_it_waits_while_others_wait_for_locks(nodes: list[Database]) -> None:
    nodes[0].execute("CREATE TABLE other (id int)")
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    with psycopg.connect(nodes[0].uri) as holder:
        holder.execute("LOCK TABLE other")
        with _busy(nodes[0], "LOCK TABLE other"):
            assert wait_until(lambda: nodes[0].execute(waiting) == [(1,)], 60)
            progress = Reasons(holder.rollback)
            result = _diff(nodes, gentle=True, max_lock_waits=0, progress=progress)
    assert result.verdict == "DIFFER"
    assert "1 sessions wait for locks (limit 0)" in progress.reasons[0]


@pytest.fixture
def standby(fresh_server: FreshServer) -> Iterator[tuple[Server, Server]]:
    """A server and its physical standby."""
    primary: Server = fresh_server(name="primary")
    folder = Path(f"/tmp/trueup-standby-{os.urandom(4).hex()}")
    program = primary._program("pg_basebackup")
    command = f'{program} -D {folder}/data -R -c fast -d "host=127.0.0.1 port={primary.port} user=postgres"'
    primary.database("postgres").execute(f"COPY (SELECT 1) TO PROGRAM '{command}'")
    shutil.copy(primary.folder / "pg_hba.conf", folder)
    (folder / "pg_hba.conf").chmod(0o644)
    yield primary, fresh_server(folder, name="standby", settings={"wal_receiver_status_interval": "1s"})
    shutil.rmtree(folder, ignore_errors=True)


def test_it_waits_while_replication_is_behind(standby: tuple[Server, Server]) -> None:
    primary, copy = standby
    source, target = primary.database("postgres"), copy.database("postgres")
    source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 100)")
    assert wait_until(lambda: target.execute("SELECT to_regclass('t') IS NOT NULL") == [(True,)], 60)
    target.execute("SELECT pg_wal_replay_pause()")
    source.execute("INSERT INTO t VALUES (101)")
    received = "SELECT pg_last_wal_receive_lsn() > pg_last_wal_replay_lsn()"
    assert wait_until(lambda: target.execute(received) == [(True,)], 60)
    progress = Reasons(lambda: target.execute("SELECT pg_wal_replay_resume()"))
    behind = "SELECT now() - pg_last_xact_replay_timestamp() > interval '0.3 s'"
    assert wait_until(lambda: target.execute(behind) == [(True,)], 60)
    result = _diff([source, target], gentle=True, max_lag=0.2, progress=progress)
    assert "n2: replication is" in "".join(progress.reasons)
    assert result.verdict == "MATCH"


def test_a_missing_privilege_to_monitor_is_reported_once(nodes: list[Database], server: Server) -> None:
    role = f"plain_{os.getpid()}"
    nodes[0].execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
    try:
        node = trueup.Node("n1", server.uri(nodes[0].name, user=role, password="secret"))
        messages: list[str] = []
        with psycopg.connect(nodes[0].uri):
            watch = Watch([node], application="trueup test", interval=60, delay=0, report=messages.append)
            watch.read_loads()
            watch.read_loads()
            watch.close()
        assert [load.active for load in watch.loads()] == [None]
        assert messages == ["n1: the role cannot see active sessions: grant pg_monitor to it to apply their limits"]
    finally:
        nodes[0].execute(f"DROP ROLE {role}")


def test_an_own_query_that_waits_for_a_lock_is_reported(nodes: list[Database]) -> None:
    ours = trueup.Node("n1", nodes[0].uri)
    with psycopg.connect(nodes[0].uri, application_name="a long migration") as holder:
        pid = holder.info.backend_pid
        holder.execute("LOCK TABLE t")
        with _busy(nodes[0], "SELECT count(*) FROM t"), connect(ours, application="watcher") as watching:
            assert wait_until(lambda: bool(load_of(watching, "n1", "the application").waits), 60)
            reason = load_of(watching, "n1", "the application").waits
            holder.rollback()
    assert f"s for a lock held by process {pid} (postgres, a long migration)" in reason


def test_a_lost_node_is_reported(fresh_server: FreshServer) -> None:
    server: Server = fresh_server()
    messages: list[str] = []
    node = trueup.Node("n1", server.uri())
    watch = Watch([node], application="trueup test", interval=60, delay=0, report=messages.append)
    watch.read_loads()
    server.kill()
    watch.read_loads()
    watch.close()
    assert len(messages) == 1
    assert messages[0].startswith("n1: does not respond, retrying: ")


def test_limits() -> None:
    settings = trueup.DiffSettings(max_lag=10, max_active_sessions=5, max_lock_waits=0)
    assert too_busy(Load("n1", None, None, 0), settings) == ""
    assert too_busy(Load("n1", 10.0, 5, 0), settings) == ""
    assert too_busy(Load("n1", 11.0, 5, 0), settings) == "n1: replication is 11.0 s behind (limit 10 s)"
    assert too_busy(Load("n1", 0.0, 6, 0), settings) == "n1: 6 sessions are active (limit 5)"


def test_no_connection_left_for_monitoring(nodes: list[Database]) -> None:
    with pytest.raises(ConfigError, match="needs one connection per node to watch"):
        _diff(nodes, gentle=True, max_connections=2)
