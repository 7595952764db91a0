"""The process of a server: its pid file, and the watchdog that ends it with its parent."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

# $1 is the data folder; the other arguments are folders to remove. A line on the pipe means: stopped in order.
# The pid is read from the pid file of the server, which may be written just after the parent was killed. A negative
# pid belongs to initdb, which ends by itself. A pid that belongs to another process by now is not signalled.
_WATCHDOG = """
if read -r line; then exit 0; fi
data=$1; shift; tries=0; signalled=
while [ $tries -lt 30 ]; do
    pid=; [ -r "$data/postmaster.pid" ] && read -r pid < "$data/postmaster.pid"
    case $pid in
        ''|-*) [ -z "$signalled" ] || break ;;
        *)
            [ ! -e /proc/self/cmdline ] || grep -qF -- "$data" "/proc/$pid/cmdline" || break
            kill -QUIT "$pid" && kill -CONT "$pid" || break
            signalled=yes ;;
    esac
    tries=$((tries + 1)); sleep 0.1
done
[ $tries -lt 30 ] || [ -z "$signalled" ] || kill -KILL "$pid"
[ $# -eq 0 ] || rm -rf -- "$@"
"""


def start_watchdog(data_dir: Path, remove: Sequence[Path]) -> subprocess.Popen[bytes]:
    """Start a shell process that holds one end of a pipe to this process.

    When this process ends without `dismiss_watchdog`, the watchdog stops the server of the data folder and removes the
    folders. The kernel closes our end of the pipe however this process ends, including kill -9.
    """
    return subprocess.Popen(
        ["/bin/sh", "-c", _WATCHDOG, "trueup-watchdog", str(data_dir), *map(str, remove)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def dismiss_watchdog(watchdog: subprocess.Popen[bytes]) -> None:
    """End the watchdog of a server that was stopped and removed in order."""
    if watchdog.stdin is not None:
        with contextlib.suppress(BrokenPipeError), watchdog.stdin:
            watchdog.stdin.write(b"stopped\n")
    watchdog.wait()


def read_pid_file(data_dir: Path) -> tuple[int | None, str, int | None]:
    """Return the pid, the status and the shared memory segment in postmaster.pid, as far as they are written."""
    try:
        lines = (data_dir / "postmaster.pid").read_text().splitlines()
    except OSError:
        return None, "", None
    lines += [""] * (8 - len(lines))
    pid = int(lines[0]) if lines[0].strip().isdigit() else None
    memory = lines[6].split()
    return pid, lines[7].strip(), int(memory[1]) if len(memory) == 2 else None


def remove_stale_pid_file(data_dir: Path) -> None:
    """Remove the pid file of a server that has ended: if its pid is in use again, the next server would not start."""
    pid = read_pid_file(data_dir)[0]
    if pid is not None and not is_postmaster(pid, data_dir):
        (data_dir / "postmaster.pid").unlink(missing_ok=True)


def is_postmaster(pid: int, data_dir: Path) -> bool:
    """Return whether the process is the server of this data folder, and not another one with the same pid."""
    try:
        return str(data_dir) in psutil.Process(pid).cmdline()
    except psutil.Error:
        return False


def with_children(pid: int) -> list[psutil.Process]:
    """Return a process and its direct children; an empty list if it has ended."""
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children()]
    except psutil.NoSuchProcess:
        return []


def has_ended(process: psutil.Process) -> bool:
    """Return whether the process has ended, including a zombie that its parent has not collected."""
    try:
        return not process.is_running() or bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    """Wait at most `timeout` seconds until the condition is true; return whether it became true."""
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        if waited > timeout:
            return False
        # What is waited for needs the processor too.
        time.sleep(min(0.01 + waited / 10, 0.1))
    return True
