"""Tasks whose process is dead: after kill -9, with a reused pid, after a reboot, on another host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from trueup.store import COMPLETED, FAILED, RUNNING, TaskStore, owner, tasks
from trueup.store.owner import Owner, this_process, why_lost

Query = Callable[..., list[tuple[Any, ...]]]

RUNS_FOREVER = """
import sys
from trueup.store import TaskStore
store = TaskStore(sys.argv[1])
task = store.start("TABLE_DIFF", context={"mode": "diff"})
store.heartbeat(task.task_id, {"blocks": 1})
print(task.task_id, flush=True)
sys.stdin.read()
"""
HERE = Owner("here", "boot-1", "pid:[1]", 4711, "100")


def now() -> datetime:
    return datetime.now(timezone.utc)


def elsewhere(query: Query, minutes: int) -> None:
    query(
        "UPDATE tasks SET host = 'elsewhere', boot_id = 'another',"
        " heartbeat_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?)",
        f"-{minutes} minutes",
    )


@pytest.mark.parametrize("reaped", [False, True])
def test_a_killed_process_leaves_a_failed_task(path: Path, query: Query, reaped: bool) -> None:
    command = [sys.executable, "-c", RUNS_FOREVER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        task_id = process.stdout.readline().strip()
        with TaskStore(path) as store:
            assert store.get(task_id).task_status == RUNNING
            process.send_signal(signal.SIGKILL)
            # Wait for its end; until it is reaped it stays in the process table.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            if reaped:
                process.wait()
            assert query("SELECT task_status FROM ace_tasks") == [(RUNNING,)]
        TaskStore(path).close()
        error = f"process {process.pid} ended without finishing the task"
        seen = "SELECT task_status, json_extract(task_context, '$.error', '$.mode') FROM ace_tasks"
        assert query(seen) == [(FAILED, f'["{error}","diff"]')]
        with TaskStore(path) as store:
            task = store.get(task_id)
        assert (task.task_status, task.task_context["error"]) == (FAILED, error)
        assert task.finished_at == task.heartbeat_at
        assert task.time_taken is not None
        assert task.progress == {"blocks": 1}


def test_an_open_store_sweeps(store: TaskStore, path: Path) -> None:
    command = [sys.executable, "-c", RUNS_FOREVER, str(path)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    assert [task.task_status for task in store.list()] == [FAILED]
    assert store.get(done.stdout.strip()).task_status == FAILED


def test_a_reused_pid_is_another_process(store: TaskStore, path: Path, query: Query) -> None:
    task = store.start("TABLE_DIFF", context={})
    query("UPDATE tasks SET pid_started = '1'")
    TaskStore(path).close()
    assert query("SELECT task_status FROM ace_tasks") == [(FAILED,)]
    assert store.get(task.task_id).task_status == FAILED


def test_a_task_of_a_living_process_needs_no_heartbeat(store: TaskStore, path: Path, query: Query) -> None:
    store.start("TABLE_DIFF", context={})
    query("UPDATE tasks SET heartbeat_at = '2020-01-01T00:00:00.000Z', started_at = '2020-01-01T00:00:00.000Z'")
    TaskStore(path).close()
    assert query("SELECT task_status FROM ace_tasks") == [(RUNNING,)]


def test_an_owner_on_another_host_is_judged_by_its_heartbeat(store: TaskStore, query: Query) -> None:
    task = store.start("TABLE_DIFF", context={"mode": "diff"})
    elsewhere(query, minutes=9)
    assert store.get(task.task_id).task_status == RUNNING
    elsewhere(query, minutes=11)
    lost = store.get(task.task_id)
    assert lost.task_status == FAILED
    assert "on elsewhere sent no heartbeat for more than 10 minutes" in lost.task_context["error"]
    assert lost.finished_at == lost.heartbeat_at


def test_a_heartbeat_revives_a_swept_task(store: TaskStore, query: Query) -> None:
    task = store.start("TABLE_DIFF", context={"mode": "diff"})
    elsewhere(query, minutes=11)
    assert store.get(task.task_id).task_status == FAILED
    store.heartbeat(task.task_id, {"blocks": 2})
    back = store.get(task.task_id)
    assert (back.task_status, back.task_context) == (RUNNING, {"mode": "diff"})
    assert (back.finished_at, back.time_taken, back.progress) == (None, None, {"blocks": 2})


def test_the_owner_can_finish_a_swept_task(store: TaskStore, query: Query) -> None:
    task = store.start("TABLE_DIFF", context={"mode": "diff"})
    elsewhere(query, minutes=11)
    assert store.get(task.task_id).task_status == FAILED
    done = store.finish(task.task_id, COMPLETED, summary={"rows": 1})
    assert (done.task_status, done.task_context) == (COMPLETED, {"mode": "diff", "diff_summary": {"rows": 1}})
    elsewhere(query, minutes=11)
    assert store.get(task.task_id).task_status == COMPLETED


@pytest.mark.parametrize("end", [True, False])
def test_a_sweep_does_not_overwrite_concurrent_changes(
    store: TaskStore, path: Path, query: Query, monkeypatch: pytest.MonkeyPatch, end: bool
) -> None:
    task = store.start("TABLE_DIFF", context={})
    query("UPDATE tasks SET heartbeat_at = '2020-01-01T00:00:00.000Z'")

    def judged_too_late(*_: object) -> str:
        if end:
            store.finish(task.task_id, COMPLETED)
        else:
            store.heartbeat(task.task_id)
        return "gone"

    monkeypatch.setattr(tasks, "why_task_lost", judged_too_late)
    TaskStore(path).close()
    assert query("SELECT task_status FROM ace_tasks") == [(COMPLETED if end else RUNNING,)]


def test_this_process_is_alive() -> None:
    assert why_lost(this_process(), now() - timedelta(days=1)) is None


def test_without_proc_the_pid_and_start_time_decide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(owner, "PROC", tmp_path)
    me = this_process()
    assert (me.boot_id, me.pid_space) == ("", "")
    assert why_lost(me, now() - timedelta(days=1)) is None
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert why_lost(replace(me, pid=process.pid), now()) is not None
    assert why_lost(replace(me, pid=process.pid, host="elsewhere"), now()) is None


def test_the_same_pid_in_another_container_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "this_process", lambda: HERE)
    monkeypatch.setattr(owner, "is_alive", lambda who: False)
    other = replace(HERE, pid_space="pid:[2]")
    assert why_lost(HERE, now()) is not None
    assert why_lost(other, now()) is None
    assert why_lost(other, now() - timedelta(minutes=11)) is not None
    assert why_lost(replace(HERE, host="renamed"), now()) is not None


def test_a_reboot_ends_all_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    booted = now() - timedelta(minutes=1)
    monkeypatch.setattr(owner, "this_process", lambda: HERE)
    monkeypatch.setattr(owner, "boot_time", lambda: booted)
    before = replace(HERE, boot_id="boot-0")
    reason = why_lost(before, booted - timedelta(minutes=1))
    assert reason == "process 4711 ended without finishing the task"
    # A heartbeat after the boot comes from another machine with the same name.
    assert why_lost(before, booted + timedelta(seconds=1)) is None
    assert why_lost(replace(before, host="elsewhere"), booted - timedelta(minutes=1)) is None


def test_the_boot_time_is_in_the_past() -> None:
    assert owner.boot_time() < now()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="/proc does not exist")
def test_the_start_time_has_the_format_that_older_versions_recorded() -> None:
    # Field 22 of /proc/PID/stat, in ticks since boot. The program name in brackets may contain blanks.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    assert this_process().pid_started == fields[19]


def test_an_owner_without_a_start_time_is_looked_up_by_pid() -> None:
    assert owner.is_alive(replace(this_process(), pid_started=""))
    assert not owner.is_alive(replace(this_process(), pid_started="1"))
