"""Failures during a run: killed servers, terminated sessions, dropped tables, concurrent writes, Ctrl-C.

Faults are triggered by a progress object, which the run calls at each step: nothing here waits
for a time, only for conditions.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import trueup
from support.fixtures import Compare, Databases, FreshServer, OnAll, ReportOf
from trueup.report.json_reader import open_report
from trueup.report.model import DiffResult
from trueup.report.text import report_text, summary
from trueup.store import TaskStore
from trueup.testing.postgres import Database
from trueup.testing.processes import wait_until

TABLE = """
    CREATE TABLE items (id int PRIMARY KEY, name text);
    INSERT INTO items SELECT i, 'item ' || i FROM generate_series(1, 2000) i;
    ANALYZE items;
"""
# One block after the other, so that the first step ends before the second begins.
STEPS = {"block_size": 100, "override_block_size": True, "compare_unit_size": 20, "concurrency_factor": 0.0}
Waiting = Callable[[Database, str], None]
Started = Callable[..., "subprocess.Popen[str]"]
SESSIONS = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'trueup %%' AND datname = %s"


# A filter that detects in which statement it is used (and does not contain the text that it searches for).
NOT_HASHING = "current_query() NOT LIKE '%hash_' || 'record%'"
ALLOWED = ["pg_sleep", "current_query"]


class Hooks:
    """A progress object that calls a function once: after the first block with rows, or when a stage begins."""

    def __init__(self, first_step: Callable[[], object] | None = None, **stages: Callable[[], object]) -> None:
        self._first_step = first_step
        self._stages = stages
        self.seen: list[str] = []
        self.messages: list[str] = []

    def stage(self, name: str, total: int) -> None:
        """Call the function of the stage: `re_check` for `re-check 1/2`, `hashing` for `hashing`."""
        self.seen.append(name)
        hook = self._stages.pop(name.split()[0].replace("-", "_"), None)
        if hook is not None:
            hook()

    def advance(self, steps: int = 1, *, rows: int = 0, more: int = 0, stage: str = "") -> None:
        if rows and self._first_step is not None:
            hook, self._first_step = self._first_step, None
            hook()

    def say(self, text: str) -> None:
        self.messages.append(text)

    def wait(self, reason: str) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def nodes(databases: Databases, on_all: OnAll) -> list[Database]:
    """Two nodes with the same 2000 rows, except row 1990, which is changed on the second."""
    found: list[Database] = databases(2)
    on_all(found, TABLE)
    found[1].execute("UPDATE items SET name = 'changed' WHERE id = 1990")
    return found


def sessions(node: Database) -> list[int]:
    """Return the backends of trueup in a database."""
    return [row[0] for row in node.server.database("postgres").execute(SESSIONS, (node.name,))]


def no_sessions(nodes: list[Database]) -> bool:
    """Return whether all backends of trueup end soon."""
    return wait_until(lambda: not any(sessions(node) for node in nodes), 60)


def counts(result: DiffResult, pair: str = "n1/n2") -> tuple[int, int, int, int]:
    found = result.pairs[pair]
    return found.missing, found.extra, found.changed, found.in_flight


# Lost nodes and sessions.


def test_a_server_that_is_killed(
    databases: Databases, fresh_server: FreshServer, compare: Compare, report_of: ReportOf
) -> None:
    (one,) = databases(1)
    lost = fresh_server(name="lost")
    two = lost.database("postgres")
    for node in (one, two):
        node.execute(TABLE)
    result = compare([one, two], "items", progress=Hooks(lost.kill), retries=1, **STEPS)
    assert (result.verdict, result.exit_code) == ("INCOMPLETE", 2)
    assert any("node n2" in reason for reason in result.incomplete)
    assert not any("node n1" in reason for reason in result.incomplete)
    assert any("were not compared" in reason for reason in result.incomplete)
    report = report_of(result)
    assert report["summary"]["verdict"] == "INCOMPLETE"
    assert report["incomplete"] == list(result.incomplete)
    assert 0 < result.rows_checked < 2000
    with TaskStore() as store:
        (task,) = store.list()
    assert (task.task_status, task.diff_file_path) == ("FAILED", result.report)
    assert "node n2" in task.task_context["error"]
    assert wait_until(lambda: not sessions(one), 60)


def _end_readers(node: Database) -> Callable[[], None]:
    """Return a function that ends all sessions except the oldest: the driver's, which holds the snapshot."""

    def end() -> None:
        query = """
            SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
             WHERE application_name LIKE 'trueup %%' AND datname = %s
               AND backend_start > (SELECT min(backend_start) FROM pg_stat_activity
                                     WHERE application_name LIKE 'trueup %%' AND datname = %s)
        """
        ended = node.server.database("postgres").execute(query, (node.name, node.name))
        assert ended == [(True,)]

    return end


@pytest.mark.parametrize("snapshot", [True, False])
def test_a_terminated_session_is_reopened(nodes: list[Database], compare: Compare, snapshot: bool) -> None:
    result = compare(nodes, "items", progress=Hooks(_end_readers(nodes[1])), snapshot=snapshot, **STEPS)
    assert (result.verdict, result.incomplete) == ("DIFFER", ())
    assert (result.rows_checked, counts(result)) == (2000, (0, 0, 1, 0))


def test_a_terminated_session_without_retries(nodes: list[Database], compare: Compare) -> None:
    result = compare(nodes, "items", progress=Hooks(_end_readers(nodes[1])), retries=0, **STEPS)
    assert result.verdict == "INCOMPLETE"
    assert any("node n2" in reason for reason in result.incomplete)


def test_a_lost_snapshot(nodes: list[Database], compare: Compare) -> None:
    def end_all() -> None:
        query = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid = ANY(%s)"
        assert nodes[1].server.database("postgres").execute(query, (sessions(nodes[1]),)) == [(True,), (True,)]

    result = compare(nodes, "items", progress=Hooks(end_all), **STEPS)
    assert result.verdict == "INCOMPLETE"
    assert result.incomplete[0] == "node n2: the connection that holds the snapshot was lost"
    assert wait_until(lambda: not sessions(nodes[0]), 60)


# Tables go.


def test_a_table_that_is_dropped_without_a_snapshot(nodes: list[Database], compare: Compare) -> None:
    drop = Hooks(lambda: nodes[1].execute("DROP TABLE items"))
    result = compare(nodes, "items", progress=drop, snapshot=False, **STEPS)
    assert (result.verdict, result.exit_code) == ("INCOMPLETE", 2)
    assert result.incomplete[0].startswith("node n2, block [")
    assert 'relation "public.items" does not exist' in result.incomplete[0]
    assert len(result.incomplete) == 2, "the reason once, and the number of skipped blocks"


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    """`waiting(database, statement)`: start the statement in a thread, and return when it waits for a lock."""
    threads: list[threading.Thread] = []

    def start(node: Database, statement: str) -> None:
        def work() -> None:
            node.execute(statement)

        threads.append(threading.Thread(target=work))
        threads[-1].start()
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = %s"
        assert wait_until(lambda: node.server.database("postgres").execute(query, (node.name,)) == [(1,)], 60)

    yield start
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("statement", ["TRUNCATE items", "DROP TABLE items"])
def test_a_snapshot_locks_the_table(nodes: list[Database], compare: Compare, waiting: Waiting, statement: str) -> None:
    nodes[1].execute("UPDATE items SET name = 'item 1990' WHERE id = 1990")
    result = compare(nodes, "items", progress=Hooks(lambda: waiting(nodes[1], statement)), **STEPS)
    assert (result.verdict, result.rows_checked) == ("MATCH", 2000)


def test_a_lock_timeout_is_reported(
    nodes: list[Database], compare: Compare, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New sessions wait for the TRUNCATE, which waits for the snapshot: only the lock timeout ends this."""
    from trueup.db import node

    assert any("lock_timeout" in each for each in node.PINNED)
    pinned = tuple(each.replace("'15s'", "'200ms'") for each in node.PINNED)
    monkeypatch.setattr(node, "PINNED", pinned)

    def truncate_and_end_readers() -> None:
        waiting(nodes[1], "TRUNCATE items")
        _end_readers(nodes[1])()

    result = compare(nodes, "items", progress=Hooks(truncate_and_end_readers), **STEPS)
    assert result.verdict == "INCOMPLETE"
    assert any("node n2" in reason and "lock timeout" in reason for reason in result.incomplete)


def test_the_re_check_blocks_no_session(nodes: list[Database], compare: Compare, waiting: Waiting) -> None:
    """The snapshot has ended: a waiting statement gets its lock, and the re-check sees another table."""
    emptied = Hooks(re_check=lambda: waiting(nodes[1], "TRUNCATE items"))
    result = compare(nodes, "items", progress=emptied, recheck=2, **STEPS)
    assert (result.verdict, counts(result)) == ("INCOMPLETE", (1, 0, 0, 0))
    assert any("n2" in reason and "another" in reason for reason in result.incomplete), result.incomplete


# Time-outs.


WHOLE = {**STEPS, "block_size": 1000, "compare_unit_size": 1000}


def test_a_block_that_times_out_is_split(
    nodes: list[Database], compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trueup.rows import digest

    pieces: list[object] = []
    in_pieces = digest.digest_in_pieces

    def counted(*arguments: Any) -> Any:
        pieces.append(arguments)
        return in_pieces(*arguments)

    monkeypatch.setattr(digest, "digest_in_pieces", counted)
    monkeypatch.setattr(digest, "FIRST_STEP", 64)
    # 0.8 seconds for all rows; a piece of them has time enough on a busy machine.
    slow = "id > 1900 AND pg_sleep(0.008) IS NOT NULL"
    result = compare(nodes, "items", filter=slow, allow_functions=["pg_sleep"], block_timeout=0.4, recheck=0, **WHOLE)
    assert pieces
    assert (result.verdict, result.rows_checked, counts(result)) == ("DIFFER", 100, (0, 0, 1, 0))


@pytest.mark.parametrize("quick", [False, True], ids=["diff", "check"])
def test_blocks_that_time_out_are_listed(nodes: list[Database], compare: Compare, quick: bool) -> None:
    stuck = f"id <> 500 OR {NOT_HASHING} OR pg_sleep(5) IS NOT NULL"
    result = compare(nodes, "items", quick=quick, filter=stuck, allow_functions=ALLOWED, block_timeout=0.3, **STEPS)
    assert (result.verdict, result.exit_code) == ("INCOMPLETE", 2)
    (reason,) = [reason for reason in result.incomplete if "block [" in reason]
    assert "statement timeout" in reason
    # The rest was compared.
    assert result.mismatched_blocks == 1
    assert quick or counts(result)[2] == 1
    assert 1700 < result.rows_checked < 2000


# Concurrent writes.


def test_writes_that_converge_are_in_flight(nodes: list[Database], compare: Compare, report_of: ReportOf) -> None:
    nodes[1].execute("DELETE FROM items WHERE id = 3; INSERT INTO items VALUES (3000, 'new')")

    def arrive() -> None:
        nodes[1].execute("INSERT INTO items VALUES (3, 'item 3'); UPDATE items SET name = 'item 1990' WHERE id = 1990")
        nodes[0].execute("INSERT INTO items VALUES (3000, 'new')")

    result = compare(nodes, "items", progress=Hooks(re_check=arrive), **STEPS)
    assert (result.verdict, result.exit_code) == ("MATCH", 0)
    assert counts(result) == (0, 0, 0, 3)
    assert report_of(result)["diffs"]["n1/n2"]["differences"] == []


def test_writes_that_do_not_converge_are_differences(
    nodes: list[Database], compare: Compare, report_of: ReportOf
) -> None:
    nodes[1].execute("DELETE FROM items WHERE id = 3")

    def half() -> None:
        nodes[1].execute("INSERT INTO items VALUES (3, 'item 3'); UPDATE items SET name = 'again' WHERE id = 1990")

    result = compare(nodes, "items", progress=Hooks(re_check=half), recheck=2, **STEPS)
    assert (result.verdict, counts(result)) == ("DIFFER", (0, 0, 1, 1))
    (found,) = report_of(result)["diffs"]["n1/n2"]["differences"]
    assert found["rows"]["n2"]["name"] == "again", "the last state"


class Moving(Hooks):
    """A progress object that runs a statement before each look; `{}` is the number of the look."""

    def __init__(self, node: Database, statement: str) -> None:
        super().__init__()
        self.node = node
        self.statement = statement

    def stage(self, name: str, total: int) -> None:
        self.seen.append(name)
        if name.startswith("re-check"):
            self.node.execute(self.statement.format(len(self.seen)))


def test_a_row_that_moves_between_the_looks_is_hot(
    nodes: list[Database], compare: Compare, report_of: ReportOf
) -> None:
    nodes[1].execute("DELETE FROM items WHERE id = 3")
    moving = Moving(nodes[1], "UPDATE items SET name = 'look {}' WHERE id = 1990")
    result = compare(nodes, "items", progress=moving, recheck=2, output="html", **STEPS)
    assert (result.verdict, result.exit_code, counts(result)) == ("INCOMPLETE", 2, (1, 0, 0, 0))
    assert (result.pairs["n1/n2"].hot, result.pairs["n1/n2"].total) == (1, 1)
    assert result.incomplete == (
        "n1/n2: 1 row is hot: changed between the last two looks, so the difference is not confirmed",
    )
    assert f"trueup rerun {result.task_id[:8]}" in summary(result)
    listed = report_of(result)["diffs"]["n1/n2"]["differences"]
    assert {each["key"]["id"]: each.get("hot", False) for each in listed} == {"3": False, "1990": True}
    assert "changed, hot" in report_text(open_report(Path(result.report)))
    assert '"listed":{"missing":1,"hot":1}' in Path(result.page).read_text(encoding="utf-8")

    options: dict[str, Any] = {"nodes": {f"n{at}": node.uri for at, node in enumerate(nodes, 1)}, "engine": "local"}
    # A repair leaves it alone, unless it is to overwrite what changed.
    dry = trueup.repair(result.report, source_of_truth="n1", **options)
    assert (dry.planned["n2"]["insert"], dry.planned["n2"]["update"], list(dry.left_counts.values())) == (1, 0, [1])
    assert trueup.repair(result.report, source_of_truth="n1", stale="apply", **options).planned["n2"]["update"] == 1
    # A rerun: hot again, and confirmed as soon as it does not move.
    again = trueup.rerun(result.report, progress=moving, recheck=1, recheck_wait=0, **options)
    assert (again.verdict, again.pairs["n1/n2"].hot) == ("INCOMPLETE", 1)
    assert again.since["n1/n2"] == {"resolved": 0, "remains": 1, "new": 0}
    still = trueup.rerun(again.report, recheck=1, recheck_wait=0, **options)
    assert (still.verdict, still.pairs["n1/n2"].hot) == ("DIFFER", 0)
    assert still.since["n1/n2"] == {"resolved": 0, "remains": 2, "new": 0}
    # The verification of a repair that inserts only: the row remains, and the repair did not fail.
    moved = trueup.repair(
        still.report,
        source_of_truth="n1",
        insert_only=True,
        execute=True,
        progress=moving,
        recheck=1,
        recheck_wait=0,
        **options,
    )
    assert (moved.verdict, moved.remaining, moved.failed) == ("REMAINS", 1, {})
    assert any("1 row is hot" in remark for remark in moved.remarks)


def test_copies_of_a_row_that_move_between_the_looks_are_hot(
    databases: Databases, on_all: OnAll, compare: Compare
) -> None:
    nodes = databases(3)
    on_all(nodes, "CREATE TABLE items (name text)")
    nodes[0].execute("INSERT INTO items VALUES ('a'), ('b')")
    moving = Moving(nodes[2], "INSERT INTO items SELECT 'a' FROM generate_series(1, {})")
    result = compare(nodes, "items", progress=moving, recheck=1)
    found = {pair: (each.missing, each.extra, each.hot > 0) for pair, each in result.pairs.items()}
    # The copies of one row moved on the third node only: the other pair is confirmed.
    assert (result.verdict, found) == (
        "INCOMPLETE",
        {"n1/n2": (2, 0, False), "n1/n3": (1, 0, True), "n2/n3": (0, 0, True)},
    )


def test_a_late_row_is_found_by_the_re_check(nodes: list[Database], compare: Compare) -> None:
    hooks = Hooks()

    def second() -> None:
        hooks._stages["re_check"] = lambda: nodes[1].execute("UPDATE items SET name = 'item 1990' WHERE id = 1990")

    hooks._stages["re_check"] = second
    result = compare(nodes, "items", progress=hooks, recheck=3, **STEPS)
    assert (result.verdict, counts(result)) == ("MATCH", (0, 0, 0, 1))
    assert hooks.seen == ["hashing", "mismatch analysis", "re-check 1/3", "re-check 2/3"], (
        "with nothing left there is no third look"
    )


def test_without_a_re_check(nodes: list[Database], compare: Compare) -> None:
    hooks = Hooks(re_check=lambda: pytest.fail("there is no re-check"))
    result = compare(nodes, "items", progress=hooks, recheck=0, **STEPS)
    assert (result.verdict, counts(result)) == ("DIFFER", (0, 0, 1, 0))


def test_writes_during_the_run_are_not_in_the_snapshot(nodes: list[Database], compare: Compare) -> None:
    hooks = Hooks(lambda: nodes[1].execute("UPDATE items SET name = 'later' WHERE id > 1000"))
    result = compare(nodes, "items", progress=hooks, recheck=0, **STEPS)
    assert counts(result) == (0, 0, 1, 0)
    hooks = Hooks(lambda: nodes[1].execute("UPDATE items SET name = 'later' WHERE id > 1900"))
    nodes[1].execute("UPDATE items SET name = 'item ' || id")
    result = compare(nodes, "items", progress=hooks, recheck=0, snapshot=False, **STEPS)
    assert counts(result) == (0, 0, 100, 0), "without a snapshot they are found"


def test_a_check_has_a_re_check(nodes: list[Database], compare: Compare) -> None:
    hooks = Hooks()

    def second() -> None:
        hooks._stages["hashing"] = lambda: nodes[1].execute("UPDATE items SET name = 'item 1990' WHERE id = 1990")

    hooks._stages["hashing"] = second
    result = compare(nodes, "items", quick=True, progress=hooks, **STEPS)
    assert (result.verdict, result.mismatched_blocks) == ("MATCH", 0)
    nodes[1].execute("DELETE FROM items WHERE id = 3")
    assert compare(nodes, "items", quick=True, recheck=3, **STEPS).verdict == "DIFFER"


def test_a_check_of_dense_drift_re_checks_a_part(nodes: list[Database], compare: Compare) -> None:
    nodes[1].execute("UPDATE items SET name = 'drift'")
    hooks = Hooks()
    result = compare(nodes, "items", quick=True, progress=hooks, recheck=2, **STEPS)
    assert result.verdict == "DIFFER"
    assert result.mismatched_blocks >= result.blocks - 1, "all except an empty one at the edge"
    assert hooks.seen.count("hashing") == 3, "one comparison, and two re-checks of a part of the differences"
    (remark,) = [remark for remark in result.remarks if "in flight" in remark]
    assert remark.startswith("64 differing ranges still differ after the re-check; ")


@pytest.mark.parametrize(("healed", "verdict"), [("id < 2000", "DIFFER"), ("true", "MATCH")])
def test_a_check_continues_if_the_first_parts_were_in_flight(
    nodes: list[Database], compare: Compare, healed: str, verdict: str
) -> None:
    nodes[1].execute("UPDATE items SET name = 'drift'")
    hooks = Hooks()

    def second() -> None:
        hooks._stages["hashing"] = lambda: nodes[1].execute(f"UPDATE items SET name = 'item ' || id WHERE {healed}")

    hooks._stages["hashing"] = second
    result = compare(nodes, "items", quick=True, progress=hooks, recheck=2, **STEPS)
    assert (result.verdict, result.mismatched_blocks) == (verdict, verdict == "DIFFER")
    assert not any("in flight" in remark for remark in result.remarks)


# Signals.

# Every statement sleeps, or only those that hash rows.
SLOW = {
    "planning": "pg_sleep(0.1) IS NOT NULL",
    "hashing": f"{NOT_HASHING} OR pg_sleep(0.1) IS NOT NULL",
}


@pytest.fixture
def started(nodes: list[Database]) -> Iterator[Started]:
    """`started(phase)`: start the command as a process that stays in `planning` or `hashing` for minutes."""
    children: list[subprocess.Popen[str]] = []

    def start(phase: str, verb: str = "diff") -> subprocess.Popen[str]:
        addresses = [part for at, node in enumerate(nodes, 1) for part in ("--node", f"n{at}={node.uri}")]
        options = ["--engine", "local", "--filter", SLOW[phase], "--allow-functions", ",".join(ALLOWED)]
        child = subprocess.Popen(
            [sys.executable, "-m", "trueup", verb, "items", *addresses, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        children.append(child)
        assert wait_until(lambda: all(_sleeps(node) for node in nodes), 60)
        return child

    yield start
    for child in children:
        if child.poll() is None:
            child.kill()
        child.communicate()


def _sleeps(node: Database) -> bool:
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = %s"
    return bool(node.server.database("postgres").execute(query, (node.name,))[0][0])


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("phase", ["planning", "hashing"])
def test_stopped_by_the_user(
    nodes: list[Database], started: Started, tmp_path: Path, phase: str, stop: signal.Signals
) -> None:
    child = started(phase)
    os.kill(child.pid, stop)
    out, err = child.communicate(timeout=90)
    assert (child.returncode, out) == (130, "")
    assert err.startswith("trueup: stopped by the user")
    assert "Traceback" not in err
    assert no_sessions(nodes)
    with TaskStore() as store:
        (task,) = store.list()
    assert (task.task_status, task.task_context["error"]) == ("INTERRUPTED", "stopped by the user")
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("tasks.db")] == []


@pytest.mark.parametrize("phase", ["planning", "hashing"])
def test_killed(nodes: list[Database], started: Started, tmp_path: Path, phase: str) -> None:
    child = started(phase)
    with TaskStore() as store:
        assert [task.task_status for task in store.list()] == ["RUNNING"]
    child.kill()
    child.wait()
    listed = subprocess.run(
        [sys.executable, "-m", "trueup", "tasks", "--json"], capture_output=True, text=True, timeout=90, check=True
    )
    assert [task["task_status"] for task in json.loads(listed.stdout)] == ["FAILED"]
    assert no_sessions(nodes), "the servers end the sessions"
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("tasks.db")] == []


def test_stopped_in_a_python_call(nodes: list[Database], compare: Compare) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(trueup.Interrupted):
        compare(nodes, "items", progress=Hooks(stop), **STEPS)
    assert no_sessions(nodes)
    with TaskStore() as store:
        assert [task.task_status for task in store.list()] == ["INTERRUPTED"]


def test_an_unexpected_error_leaves_no_session(nodes: list[Database], compare: Compare) -> None:
    def fail() -> None:
        raise RuntimeError("a defect")

    with pytest.raises(RuntimeError, match="a defect"):
        compare(nodes, "items", progress=Hooks(fail), **STEPS)
    assert no_sessions(nodes)
    with TaskStore() as store:
        assert [task.task_status for task in store.list()] == ["FAILED"]


def test_only_sessions_of_trueup_are_counted(nodes: list[Database]) -> None:
    """The helper `sessions` counts sessions of trueup and no others."""
    with psycopg.connect(nodes[0].uri, application_name="trueup diff 12345678"), psycopg.connect(nodes[0].uri):
        assert len(sessions(nodes[0])) == 1
    assert wait_until(lambda: not sessions(nodes[0]), 60)
