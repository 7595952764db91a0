"""`trueup schedule` as a process: jobs start on time, a job never runs twice at once, and a signal stops all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from support.cli import WriteConfig
from support.fixtures import Cli
from trueup.store import Task, TaskStore
from trueup.testing.postgres import Database
from trueup.testing.processes import wait_until
from trueup.verbs.schedule.model import Job
from trueup.verbs.schedule.process import Runner

JOBS = """
[schedule.quick]
verb = "tasks"
arguments = "--limit 1 --json"
every = "1s"
[schedule.broken]
verb = "check"
arguments = ["nothing", "--node", "a=postgresql://u:hidden@127.0.0.1:1/x", "--node", "b=postgresql://127.0.0.1:1/y"]
every = "1s"
[schedule.long]
verb = "check"
arguments = "items --cluster both --engine local --max-rows-per-second 1"
every = "1s"
"""

Start = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def start(equal: list[Database], write_config: WriteConfig, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a scheduler of these jobs."""
    file = write_config(equal, JOBS)
    # Its check lasts longer than any test waits.
    for node in equal:
        node.execute("INSERT INTO items SELECT i FROM generate_series(51, 2000) i")
    started: list[subprocess.Popen[str]] = []

    def begin() -> subprocess.Popen[str]:
        output = open(tmp_path / f"said-{len(started) + 1}", "w+")  # noqa: SIM115
        command = [sys.executable, "-m", "trueup", "schedule", "--config", str(file)]
        started.append(subprocess.Popen(command, stdout=output, stderr=output, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def runs(job: str) -> list[Task]:
    """Return the runs of a job, oldest first."""
    with TaskStore() as store:
        return [task for task in reversed(store.list(limit=-1, task_type="SCHEDULED")) if task.table_name == job]


def at_work(store: TaskStore) -> list[Task]:
    """Return the running tasks of the long check."""
    return [task for task in store.list(task_type="TABLE_CHECK", status="RUNNING") if task.table_name == "items"]


def ended(job: str) -> list[Task]:
    return [task for task in runs(job) if task.finished_at]


def test_jobs_run_concurrently_until_a_signal(start: Start, cli: Cli, tmp_path: Path) -> None:
    process = start()
    assert wait_until(lambda: len(ended("quick")) >= 2 and len(ended("broken")) >= 2 and len(runs("long")) == 1, 60)
    assert wait_until(lambda: "long: still running; this time is skipped" in (tmp_path / "said-1").read_text(), 60)
    with TaskStore() as store:
        assert wait_until(lambda: any(at_work(store)), 60)

    def listed() -> dict[str, Any]:
        return {each["name"]: each for each in cli("schedule", "--list", "--json", "--config", "trueup.toml").json}

    # Between two runs: a running task has no result.
    assert wait_until(lambda: listed()["quick"]["result"] == "ok", 60)
    found = listed()
    assert found["long"]["status"] == "RUNNING"
    assert found["quick"]["next"] > found["quick"]["last"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0

    # A failed job runs again at its next time, with the reason in its task.
    broken = ended("broken")
    assert {task.task_status for task in broken} <= {"FAILED", "INTERRUPTED"}
    assert broken[0].task_status == "FAILED"
    assert broken[0].task_context["diff_summary"]["exit_code"] == 2
    assert {task.task_status for task in ended("quick")} <= {"COMPLETED", "INTERRUPTED"}
    # A job never runs twice at once.
    for job in ("quick", "broken"):
        times = [(task.started_at, str(task.finished_at)) for task in runs(job)]
        assert all(before[1] <= after[0] for before, after in pairwise(times))
    # The long job was stopped and waited for, and its task has that status.
    (long,) = runs("long")
    assert (long.task_status, long.task_context["diff_summary"]["exit_code"]) == ("INTERRUPTED", 130)
    (own,) = long.task_context["diff_summary"]["tasks"]
    with TaskStore() as store:
        assert store.get(own).task_status == "INTERRUPTED"
        assert store.list(limit=-1, status="RUNNING") == []
    output = (tmp_path / "said-1").read_text()
    assert "quick | [" in output
    assert "hidden" not in output + str(broken)


def test_a_job_whose_time_comes_while_the_schedule_stops_is_not_recorded() -> None:
    with TaskStore() as store:
        runner, job = Runner(store, {}), Job("quick", "tasks", ("--json",), every=1)
        runner.run(job)
        assert [task.task_status for task in runs("quick")] == ["COMPLETED"]
        assert runner.stop() == []
        runner.run(job)
        assert len(runs("quick")) == 1


def test_a_job_that_outlives_a_killed_scheduler_is_not_run_twice(start: Start, tmp_path: Path) -> None:
    first = start()
    with TaskStore() as store:
        assert wait_until(lambda: any(at_work(store)), 60)
        (orphan,) = (task.pid for task in at_work(store))
        try:
            first.kill()
            first.wait()
            second = start()
            assert wait_until(lambda: "long: still running" in (tmp_path / "said-2").read_text(), 60)
            second.send_signal(signal.SIGINT)
            assert second.wait(60) == 0
            checks = store.list(limit=-1, task_type="TABLE_CHECK")
            assert [task.pid for task in checks if task.table_name == "items"] == [orphan]
        finally:
            os.kill(orphan, signal.SIGKILL)


def test_a_wrong_job_is_refused_at_the_start(equal: list[Database], write_config: WriteConfig, cli: Cli) -> None:
    write_config(equal, '[schedule.night]\nverb = "check"\narguments = "items --clutser both"\nevery = "1h"')
    ran = cli("schedule", "--list")
    assert (ran.code, "schedule.night: No such option" in ran.err) == (2, True)
    write_config(equal, '[schedule.night]\nverb = "tube"\narguments = "lst"\nevery = "1h"')
    ran = cli("schedule")
    assert (ran.code, "schedule.night: No such command 'lst'" in ran.err) == (2, True)
    write_config(equal, '[schedule.night]\nverb = "tube"\narguments = "list --node n1"\ncron = "0 3 * * 0"')
    ran = cli("schedule", "--list")
    assert (ran.code, ran.out.splitlines()[1].split()[:7]) == (0, ["night", "0", "3", "*", "*", "0", "(UTC)"])


def test_notes_of_the_schedule_are_log_records(
    equal: list[Database], write_config: WriteConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It runs at once, and not again before the end.
    file = write_config(equal, '[schedule.quick]\nverb = "tasks"\narguments = "--limit 1 --json"\nevery = "1h"')
    command = [sys.executable, "-m", "trueup", "schedule", "--config", str(file)]
    for options in (["--log-format", "json"], ["--quiet"]):
        monkeypatch.setenv("TRUEUP_TASKS_DB", str(tmp_path / f"{options[0]}.db"))
        with subprocess.Popen([*command, *options], stdout=-1, stderr=-1, text=True) as process:
            # Also if it fails: the end of the block waits for the process.
            try:
                assert wait_until(lambda: len(ended("quick")) == 1, 60)
            finally:
                process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, "")
        records = [json.loads(line) for line in err.splitlines()]
        assert {record.get("job") for record in records} == ({"quick", None} if options[0] != "--quiet" else set())
        assert [record["message"] for record in records][-1:] == (["stopping"] if records else [])
