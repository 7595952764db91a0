"""Ends every process that a test run started, whatever ends the run: its normal end, Ctrl-C or kill -9.

The process that starts the run puts a random id into its environment, which all processes of the run inherit, and
starts the guard: this module as a program, which holds one end of a pipe. The kernel closes the other end when the
process of the run ends, however it ends. The guard then waits for the processes with this id to end by themselves,
terminates those that do not, and exits.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid

import psutil

VARIABLE = "TEST_RUN_ID"
# Long enough for the watchdogs of PostgreSQL servers to remove the data, and for a JVM to shut down.
GRACE_SECONDS = 10.0
TERM_SECONDS = 5.0


def start_guard() -> subprocess.Popen[bytes]:
    """Mark this process and its future children, and start the guard. Keep the result until the run ends."""
    os.environ[VARIABLE] = uuid.uuid4().hex
    return subprocess.Popen(
        [sys.executable, __file__, os.environ[VARIABLE]],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        # Its own session: Ctrl-C in a terminal does not reach it.
        start_new_session=True,
    )


def processes_of_run(run_id: str) -> list[psutil.Process]:
    """Return the living processes of a run, and their children (some programs overwrite their environment)."""
    marked: set[psutil.Process] = set()
    for process in psutil.process_iter():
        try:
            if process.environ().get(VARIABLE) == run_id and process.status() != psutil.STATUS_ZOMBIE:
                marked |= {process, *process.children(recursive=True)}
        except (psutil.Error, OSError):
            continue
    return [process for process in marked if process.pid != os.getpid() and process.is_running()]


def end_processes(run_id: str) -> None:
    """Wait for the processes of a run to end; terminate, then kill those that do not."""
    deadline = time.monotonic() + GRACE_SECONDS
    while (left := processes_of_run(run_id)) and time.monotonic() < deadline:
        time.sleep(0.2)
    for process in left:
        _signal(process, kill=False)
    psutil.wait_procs(left, timeout=TERM_SECONDS)
    while left := processes_of_run(run_id):
        for process in left:
            _signal(process, kill=True)
        psutil.wait_procs(left, timeout=1)


def _signal(process: psutil.Process, *, kill: bool) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        if kill:
            process.kill()
        else:
            process.terminate()


if __name__ == "__main__":
    sys.stdin.buffer.read()
    end_processes(sys.argv[1])
