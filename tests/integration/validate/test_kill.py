"""A validation as a process: the command line, and the state after a kill."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psycopg
import pytest

from support.validate import Copy


def _trueup(copy: Copy, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trueup", "validate", *arguments, *_nodes(copy)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _nodes(copy: Copy) -> list[str]:
    return ["--node", f"n1={copy.up.uri}", "--node", f"n2={copy.down.uri}"]


def _process(copy: Copy) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "trueup", "validate", "start", "--name", "v", "--engine", "local", *_nodes(copy)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("changes", ["log", "changelog"])
def test_no_change_is_lost_or_duplicated_after_a_kill(copy: Copy, changes: str) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int)")
    copy.replicate("t")
    copy.spoil("t", "IF NEW.id % 100 = 0 THEN RETURN NULL; END IF;", "INSERT")
    copy.start(row_error_delay=2.0, batch=300, page=7, changes=changes)
    copy.stop()
    go_on = threading.Event()
    writer = threading.Thread(target=_write, args=(copy, go_on), daemon=True)
    writer.start()
    _kill_in_a_checkpoint(copy, _process(copy))
    before = copy.status().total("processed")
    process = _process(copy)
    go_on.set()
    copy.until(lambda: copy.status().total("processed") > before)
    process.kill()
    process.wait()
    writer.join()
    copy.until(lambda: copy.status().state == "stopped")
    assert "its process ended without stopping" in copy.status().reason
    copy.go_on()
    fence = copy.fence()
    assert (fence.validated, fence.errors) == (True, 20)
    status = copy.status()
    assert (status.total("inserts"), status.total("updates"), status.total("pending")) == (2000, 1000, 0)
    assert sorted(int(error.key[0]) for error in copy.errors("all")) == list(range(100, 2001, 100))


def _write(copy: Copy, go_on: threading.Event) -> None:
    """Write 2000 rows, the second half after the first kill."""
    with psycopg.connect(copy.up.uri, autocommit=True) as connection:
        for at in range(0, 2000, 50):
            if at == 1000:
                go_on.wait(60)
            connection.execute("INSERT INTO t SELECT i FROM generate_series(%s::int, %s::int) i", [at + 1, at + 50])
            connection.execute("UPDATE t SET n = 1 WHERE id BETWEEN %s AND %s", [at + 1, at + 25])
            time.sleep(0.02)


def _kill_in_a_checkpoint(copy: Copy, process: subprocess.Popen[bytes]) -> None:
    """Lock the row that a checkpoint writes last; kill the process when it waits for it."""
    copy.until(lambda: copy.status().total("processed") > 100)
    with psycopg.connect(copy.down.uri) as connection:
        connection.execute("SELECT 1 FROM trueup.validation FOR UPDATE")
        copy.until(lambda: copy.down.execute("SELECT 1 FROM pg_locks WHERE NOT granted"))
        process.send_signal(signal.SIGKILL)
        process.wait()


def test_the_command_line_from_start_to_delete(copy: Copy, tmp_path: Path) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int)")
    copy.replicate()
    copy.spoil("t", "IF NEW.id = 2 THEN NEW.n = 5; END IF;", "INSERT")
    started = _trueup(
        copy, "start", "--from", "n1", "--to", "n2", "--tables", "public.t", "--name", "v", "--check-interval", "0.1",
        "--row-error-delay", "0.3", "--detach", "--json",
    )  # fmt: skip
    assert started.returncode == 0, started.stderr
    log = Path(json.loads(started.stdout)["log"])
    assert log.stat().st_mode & 0o777 == 0o600
    assert "validating 1 table of" in log.read_text(), "the job waits for it"
    for also in ((), ("--detach",)):
        again = _trueup(copy, "start", "--name", "v", *also)
        assert again.returncode == 2
        assert "is already running" in again.stderr
    copy.up.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
    fence = _trueup(copy, "fence", "v")
    assert fence.returncode == 1
    assert "1 error\n" in fence.stdout
    errors = _trueup(copy, "errors", "v")
    assert errors.returncode == 1
    assert "n: '2' -> '5'" in errors.stdout
    assert _trueup(copy, "ignore", "v", "--all").returncode == 0
    status = _trueup(copy, "status", "v")
    assert status.returncode == 0, status.stdout
    assert "validated through position" in status.stdout
    assert "2 changes processed, 0 pending" in status.stdout
    assert _trueup(copy, "stop", "v").returncode == 0
    assert json.loads(_trueup(copy, "status", "v", "--json").stdout)["state"] == "stopped"
    assert _trueup(copy, "delete", "v").returncode == 0
    assert copy.left() == []


def test_detach_reports_a_validation_that_cannot_start(copy: Copy, tmp_path: Path) -> None:
    copy.both("CREATE TABLE t (id int PRIMARY KEY, n int)")
    log = tmp_path / "v.log"
    new = ("--from", "n1", "--to", "n2", "--tables", "public.t", "--name", "v")
    started = _trueup(copy, "start", *new, "--detach", "--log", str(log))
    assert (started.returncode, started.stdout) == (2, "")
    assert "trueup: validation v could not start: the position of the target is unknown" in started.stderr
    assert "\n  what to do: name the syncer with --syncer" in started.stderr
    assert "the position of the target is unknown" in log.read_text()


def test_the_demo(capfd: pytest.CaptureFixture[str]) -> None:
    from trueup.cli.main import run

    before = signal.getsignal(signal.SIGTERM)
    try:
        assert run(["demo", "validate", "--rows", "300", "--seconds", "1"]) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    output = capfd.readouterr().out
    assert output.count("  error at ") == output.count("  resolved at ") == 4
    assert "0 pending (0 failed, 0 hot), 0 errors" in output
