"""Sessions of a command end at any moment: the result is exact, or the command fails with a cause and a cure."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from support.cut import CuttingProxy, Way
from support.fixtures import Cli, Databases, OnAll, Ran
from trueup.db import commit
from trueup.store import TaskStore
from trueup.testing.postgres import Database
from trueup.testing.processes import wait_until

TABLE = """
    CREATE TABLE items (id int PRIMARY KEY, name text);
    INSERT INTO items SELECT i, 'item ' || i FROM generate_series(1, 300) i;
    ANALYZE items;
"""
DRIFT = "UPDATE items SET name = 'x' WHERE id IN (7, 70); DELETE FROM items WHERE id = 1; INSERT INTO items VALUES (-1)"
NOTHING = "nothing was written"


@dataclass
class Pair:
    """Two nodes that differ; `n2` is reached through a proxy, and is as it was before each command."""

    cli: Cli
    nodes: list[Database]
    report: str = ""
    undo: str = ""

    def rows(self) -> list[tuple[object, ...]]:
        return self.nodes[1].execute("SELECT * FROM items ORDER BY 1")

    def prepare(self) -> None:
        """Make a report of the differences, and the undo file of a repair."""
        self.report = self.path("report", self.run("diff"))
        self.undo = self.path("undo file", self.run("repair"))

    def path(self, name: str, ran: Ran) -> str:
        found = re.search(rf"^  {name}: (\S+)$", ran.out, re.MULTILINE)
        assert found, ran
        return found[1]

    def restore(self, verb: str) -> None:
        """Let n2 differ, or be as the repair left it."""
        rows = "INSERT INTO items SELECT i, 'item ' || i FROM generate_series(1, 300) i"
        self.nodes[1].execute(f"TRUNCATE items; {rows}; {'' if verb == 'undo' else DRIFT}")

    def addresses(self, proxy: CuttingProxy | None = None) -> list[str]:
        first, second = (node.uri for node in self.nodes)
        return ["--node", f"n1={first}", "--node", f"n2={proxy.address(second) if proxy else second}"]

    def run(self, verb: str, proxy: CuttingProxy | None = None) -> Ran:
        addresses = self.addresses(proxy)
        if verb == "undo":
            return self.cli(verb, self.undo, "--execute", *addresses)
        options = ["--engine", "local", "--recheck", "0", *addresses]
        if verb == "repair":
            return self.cli(verb, self.report, "--source-of-truth", "n1", "--execute", *options)
        return self.cli(verb, self.report if verb == "rerun" else "items", *options)


@pytest.fixture
def pair(cli: Cli, databases: Databases, on_all: OnAll) -> Pair:
    nodes = databases(2)
    on_all(nodes, TABLE)
    nodes[1].execute(DRIFT)
    found = Pair(cli, nodes)
    found.prepare()
    return found


def last_task() -> tuple[str, str]:
    with TaskStore() as store:
        task = store.list(limit=1)[0]
    return task.task_status, str(task.task_context.get("error", ""))


def check_honest(ran: Ran, *, is_changed: bool, writes: bool) -> None:
    """Check what holds for every command that failed."""
    text = ran.out + ran.err
    assert "defect" not in text, text
    assert "Traceback" not in text, text
    assert "node n2" in text, text
    assert "what to do:" in text or "next:" in text, text
    status, error = last_task()
    assert status == "FAILED", text
    assert "n2" in error, error
    if writes:
        assert (NOTHING in text) == (not is_changed), text


@pytest.mark.parametrize("verb", ["diff", "check", "rerun", "repair", "undo"])
def test_connections_break_at_any_moment(pair: Pair, verb: str) -> None:
    pair.restore(verb)
    before = pair.rows()
    with closing(CuttingProxy(pair.nodes[1].server.port)) as counting:
        complete = pair.run(verb, counting)
    after = pair.rows()
    assert complete.code == (0 if verb in ("repair", "undo") else 1), complete
    writes = verb in ("repair", "undo")
    assert (after != before) == writes
    ways: list[Way] = ["unsent", "unanswered"]
    outcomes = set()
    for number, moment in enumerate(sorted(random.Random(verb).sample(range(1, counting.requests), 6))):
        pair.restore(verb)
        with closing(CuttingProxy(pair.nodes[1].server.port, at=moment, way=ways[number % 2])) as proxy:
            ran = pair.run(verb, proxy)
        rows = pair.rows()
        assert rows in (before, after)
        outcomes.add(ran.code)
        if ran.code == 2:
            check_honest(ran, is_changed=rows != before, writes=writes)
        else:
            assert (ran.code, rows) == (complete.code, after)
    assert 2 in outcomes


def commit_of_writes() -> Callable[[bytes], bool]:
    """Return a function that recognizes the COMMIT of the transaction that writes: its id was read before."""
    was_read = False

    def is_commit(data: bytes) -> bool:
        nonlocal was_read
        was_read = was_read or b"pg_current_xact_id" in data
        return was_read and b"COMMIT\x00" in data

    return is_commit


@pytest.mark.parametrize("verb", ["repair", "undo"])
@pytest.mark.parametrize("way", ["unsent", "unanswered", "down"])
def test_a_session_lost_during_commit(pair: Pair, monkeypatch: pytest.MonkeyPatch, verb: str, way: Way) -> None:
    monkeypatch.setattr(commit, "ASK_SECONDS", 5.0 if way != "down" else 0.1)
    pair.restore(verb)
    before = pair.rows()
    with closing(CuttingProxy(pair.nodes[1].server.port, way=way, when=commit_of_writes())) as proxy:
        ran = pair.run(verb, proxy)
    assert proxy.cut is not None
    is_changed = pair.rows() != before
    assert is_changed == (way != "unsent")
    if way == "unanswered":
        assert ran.code == 0, ran
        assert "node n2: the session was lost during COMMIT; the server confirms" in ran.err
        return
    check_honest(ran, is_changed=is_changed, writes=True)
    assert ("it is unknown whether the transaction was committed" in ran.out) == (way == "down"), ran
    assert "undo file: " in ran.out, "the undo file is kept"
    if way == "down":
        again = pair.run(verb)
        assert (again.code, last_task()[0]) == (0, "COMPLETED"), again


@pytest.mark.parametrize("verb", ["repair", "undo"])
def test_ctrl_c_during_commit(pair: Pair, verb: str) -> None:
    """The server commits, and its answer arrives after Ctrl-C, or never."""
    pair.restore(verb)
    before = pair.rows()

    def interrupt() -> None:
        connections = proxy.connections
        os.kill(os.getpid(), signal.SIGINT)
        # The session is lost after the signal was handled. The driver then connects to cancel the statement, unless the
        # signal came before it waits for the answer.
        wait_until(lambda: proxy.connections > connections, 2)

    port, when = pair.nodes[1].server.port, commit_of_writes()
    with closing(CuttingProxy(port, way="unanswered", when=when, during=interrupt)) as proxy:
        ran = pair.run(verb, proxy)
    assert pair.rows() != before
    assert (ran.code, last_task()[0]) == (130, "INTERRUPTED"), ran
    for text in (ran.err, last_task()[1]):
        assert "stopped by the user; node n2 was written (" in text, ran


def test_an_undo_file_that_vanishes_before_the_commit(pair: Pair) -> None:
    pair.restore("repair")
    before = pair.rows()

    def remove(data: bytes) -> bool:
        if b"FOR NO KEY UPDATE" in data:
            for path in Path(pair.report).parent.glob("*_undo-*.gz"):
                path.unlink()
        return False

    with closing(CuttingProxy(pair.nodes[1].server.port, when=remove)) as proxy:
        ran = pair.run("repair", proxy)
    assert pair.rows() == before
    assert (ran.code, last_task()[0]) == (2, "FAILED"), ran
    assert "nothing was written on this node" in ran.out
    assert "cannot write the undo file" in ran.out


def test_a_repair_of_a_run_that_fails(pair: Pair) -> None:
    """The tables of a run are tasks of their own: what to do is said once, for all of them."""
    for node in pair.nodes:
        node.execute("CREATE TABLE other (id int PRIMARY KEY)")
    pair.nodes[0].execute("INSERT INTO other VALUES (1)")
    pair.restore("repair")
    found = pair.cli("diff", "--schema", "public", "--engine", "local", "--recheck", "0", *pair.addresses())
    pair.report = found.out.split("next: trueup repair ")[1].split()[0]
    before = pair.rows()
    # While the tables are checked.
    with closing(CuttingProxy(pair.nodes[1].server.port, when=lambda data: b"RECURSIVE" in data)) as proxy:
        ran = pair.run("repair", proxy)
    check_honest(ran, is_changed=pair.rows() != before, writes=True)
    assert ran.err.count("run the command again") == 1, ran
    assert "unchanged or completely written" not in ran.err
    with TaskStore() as store:
        assert [task.task_status for task in store.list(limit=3)] == ["FAILED"] * 3


@contextmanager
def terminating(nodes: list[Database]) -> Iterator[None]:
    """Terminate all sessions of trueup with the second node, again and again."""
    ended = threading.Event()
    query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name ^@ 'trueup' AND datname = %s"

    def work() -> None:
        while not ended.wait(0.002):
            connection.execute(query, (nodes[1].name,))

    thread = threading.Thread(target=work)
    # Connected before the command starts.
    with psycopg.connect(nodes[1].server.database("postgres").uri, autocommit=True) as connection:
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@pytest.mark.parametrize("verb", ["diff", "rerun", "repair", "undo"])
def test_sessions_are_terminated_all_the_time(pair: Pair, verb: str) -> None:
    writes = verb in ("repair", "undo")
    # A short run may have ended before its sessions are looked for.
    for _ in range(20):
        pair.restore(verb)
        before = pair.rows()
        with terminating(pair.nodes):
            ran = pair.run(verb)
        if ran.code == 2:
            break
        assert ran.code == (0 if writes else 1), ran
    assert ran.code == 2, ran
    check_honest(ran, is_changed=pair.rows() != before, writes=writes)


def test_the_cure_continues_a_diff(pair: Pair) -> None:
    pair.restore("diff")
    with closing(CuttingProxy(pair.nodes[1].server.port, when=lambda data: b"EXPLAIN" in data)) as proxy:
        ran = pair.run("diff", proxy)
        found = re.search(r"trueup diff (--resume) (\w{8}) --node n1=… --node n2=…$", ran.err, re.MULTILINE)
        assert found, ran
        again = pair.cli("diff", *found.groups(), *pair.addresses(proxy))
    assert (again.code, last_task()[0]) == (1, "COMPLETED"), again
