"""`--resume`, and `trueup tasks pause|resume|stop`: control of a run from another process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from support.cli import NodeOptions
from support.fixtures import Cli, OnAll
from trueup.store import TaskStore
from trueup.testing.postgres import Database
from trueup.testing.processes import wait_until

BLOCKS = ("--max-rows-per-second", "100000", "--block-size", "10", "--override-block-size", "--compare-unit-size", "5")
# The limit is lower in this process only: there is time to stop it, and the resumed run takes none.
SLOW = """
from trueup.cli.main import main
from trueup.task import steering
class Budget(steering.Budget):
    def __init__(self, rows_per_second):
        super().__init__(60)
steering.Budget = Budget
main()
"""

SlowRun = tuple["subprocess.Popen[str]", TaskStore, list[str]]


@pytest.fixture
def slow_run(equal: list[Database], node_options: NodeOptions, on_all: OnAll) -> Iterator[SlowRun]:
    """A process that compares 600 rows for ten seconds, its task store, and the options of its nodes."""
    on_all(equal, "INSERT INTO items SELECT i FROM generate_series(51, 600) i; ANALYZE items")
    equal[1].execute("UPDATE items SET name = 'x' WHERE id IN (7, 333, 600)")
    command = [sys.executable, "-c", SLOW, "diff", "items", *node_options(equal), *BLOCKS]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
    with TaskStore() as store:
        yield process, store, node_options(equal)
    process.kill()
    process.wait()


def test_pause_resume_stop_and_continue(slow_run: SlowRun, cli: Cli) -> None:
    process, store, nodes = slow_run
    assert wait_until(lambda: bool(store.list(status="RUNNING")), 60)
    task = store.list(status="RUNNING")[0].task_id
    ran = cli("tasks", "pause", task[:8])
    assert (ran.code, ran.out) == (0, f"asked task {task[:8]} to pause\n")
    assert wait_until(lambda: "paused" in str(store.get(task).progress.get("waiting", "")), 60)
    assert cli("tasks", "show", task[:8]).out.count("paused")
    assert cli("tasks", "resume", task[:8]).code == 0
    assert wait_until(lambda: "waiting" not in store.get(task).progress, 60)
    assert cli("tasks", "stop", task[:8]).code == 0
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "waiting: paused" in err
    assert f"--resume {task[:8]}" in err
    assert store.get(task).task_status == "INTERRUPTED"
    ran = cli("tasks", "pause", task[:8])
    assert ran.code == 2
    assert "is not running" in ran.err
    again = [each for each in nodes if "=" in each or each == "--node"]
    ran = cli("diff", "--resume", task[:8], *again, "--json")
    assert (ran.code, ran.json["task_id"]) == (1, task)
    assert ran.json["pairs"]["n1/n2"]["changed"] == 3
    assert ran.json["rows"] == {"n1": 600, "n2": 600}


def test_a_run_of_many_tables_is_controlled_by_one_task(
    equal: list[Database], node_options: NodeOptions, on_all: OnAll, cli: Cli
) -> None:
    on_all(equal, "INSERT INTO items SELECT i FROM generate_series(51, 600) i; CREATE TABLE more AS TABLE items")
    equal[1].execute("UPDATE items SET name = 'x' WHERE id IN (7, 333, 600)")
    command = [sys.executable, "-c", SLOW, "diff", "--tables", "public.*", *node_options(equal), *BLOCKS]
    with TaskStore() as store:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
        try:
            assert wait_until(lambda: bool(store.list(task_type="TABLE_DIFF", status="RUNNING")), 60)
            whole = store.list(task_type="TABLES_DIFF")[0].task_id
            part = store.list(task_type="TABLE_DIFF", status="RUNNING")[0].task_id
            assert cli("tasks", "pause", whole[:8]).code == 0
            assert wait_until(lambda: "paused" in str(store.get(part).progress.get("waiting", "")), 60)
            assert cli("tasks", "resume", whole[:8]).code == 0
            assert wait_until(lambda: "waiting" not in store.get(part).progress, 60)
            assert cli("tasks", "stop", whole[:8]).code == 0
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 130
        assert f"--resume {whole[:8]}" in err
        assert store.get(whole).task_status == "INTERRUPTED"
        assert store.list(status="RUNNING") == []
    again = [each for each in node_options(equal) if "=" in each or each == "--node"]
    ran = cli("diff", "--resume", whole[:8], *again, "--json")
    assert (ran.code, ran.json["verdict"]) == (1, "DIFFER")
    assert {table["table"]: table["differences"] for table in ran.json["tables"]} == {
        "public.items": 3,
        "public.more": 0,
    }


def test_a_table_and_a_task_are_mutually_exclusive(cli: Cli, node_options: NodeOptions, equal: list[Database]) -> None:
    for arguments in ((), ("items", "--resume", "3f9a")):
        ran = cli("diff", *arguments, *node_options(equal))
        assert ran.code == 2
        assert "--resume TASK" in ran.err


def test_options_that_a_resumed_run_would_ignore_are_refused(
    cli: Cli, node_options: NodeOptions, equal: list[Database]
) -> None:
    ran = cli("diff", "--resume", "3f9a", "--filter", "id > 1", "--block-size", "9", *node_options(equal))
    assert ran.code == 2
    assert "--resume continues with the settings of the task: --block-size, --filter" in ran.err


def test_only_a_diff_can_be_resumed(cli: Cli, node_options: NodeOptions, equal: list[Database]) -> None:
    with TaskStore() as store:
        task = store.start("DIFFLOG_RUN", context={}).task_id
        store.finish(task, "FAILED", error="no")
    again = [each for each in node_options(equal) if "=" in each or each == "--node"]
    ran = cli("diff", "--resume", task, *again)
    assert ran.code == 2
    assert "is not a diff or check" in ran.err
