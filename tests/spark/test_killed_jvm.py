"""The Java process of Spark is killed during a command: one message with the cause and the command that continues."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from support.fixtures import Databases, OnAll
from trueup.store import TaskStore
from trueup.testing.processes import wait_until

TABLE = """
    CREATE TABLE items (id int PRIMARY KEY, name text);
    INSERT INTO items SELECT i, 'item ' || i FROM generate_series(1, 500) i;
    ANALYZE items;
"""
# Only the statements that hash rows in tasks wait; the filter does not contain the text that it searches for.
STUCK = "current_query() NOT LIKE '%hash_' || 'record%' OR pg_sleep(60) IS NOT NULL"


def _is_java(process: psutil.Process) -> bool:
    try:
        return bool(process.name() == "java")
    except psutil.NoSuchProcess:
        return False


def test_a_killed_jvm(databases: Databases, on_all: OnAll, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = databases(2)
    files = tmp_path / "files"
    files.mkdir()
    monkeypatch.setenv("TMPDIR", str(files))
    on_all(nodes, TABLE)
    options = ["--engine", "spark", "--filter", STUCK, "--allow-functions", "pg_sleep,current_query"]
    for number, node in enumerate(nodes, 1):
        options += ["--node", f"n{number}={node.uri}"]
    command = subprocess.Popen(
        [sys.executable, "-m", "trueup", "diff", "items", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = %s"
        others = nodes[0].server.database("postgres")
        assert wait_until(
            lambda: others.execute(sleeping, (nodes[0].name,)) != [(0,)] or command.poll() is not None, 240
        )
        (java,) = [child for child in psutil.Process(command.pid).children(recursive=True) if _is_java(child)]
        # Spark writes rows to its temporary files, which other users could read there.
        (private,) = [Path(part.partition("=")[2]) for part in java.cmdline() if part.startswith("-Djava.io.tmpdir=")]
        assert private.parent == files
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
        assert list(private.glob("blockmgr-*"))
        java.kill()
        out, err = command.communicate(timeout=90)
    finally:
        command.kill()
        command.wait()
    assert (command.returncode, out) == (2, "")
    # A process that is killed cannot remove its files.
    assert list(files.iterdir()) == []
    _, found, last = err.partition("trueup: the Java process of Spark was killed (SIGKILL)\n  what to do: ")
    assert found, err
    assert re.search(r"continue with: trueup diff --resume \w{8} --node n1=… --node n2=…\n$", last), err
    assert not re.search("py4j|Traceback|defect", err), err
    with TaskStore() as store:
        (task,) = store.list()
    assert (task.task_status, task.task_context["error"]) == (
        "FAILED",
        "the Java process of Spark was killed (SIGKILL)",
    )
