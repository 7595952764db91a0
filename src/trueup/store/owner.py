"""Which process runs a task, and whether it still lives."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

STALE_AFTER = timedelta(minutes=10)
_PROC = Path("/proc")


@dataclass(frozen=True)
class Owner:
    """A process, told apart from all others: also from one that gets the same number later.

    What the system does not tell (there is no /proc) is an empty text.
    """

    host: str
    boot_id: str
    pid_space: str
    pid: int
    pid_started: str


def this_process() -> Owner:
    """The process that asks."""
    pid = os.getpid()
    return Owner(socket.gethostname(), _boot_id(), _pid_space(), pid, _state_and_start(pid)[1])


def why_lost(owner: Owner, last_heard: datetime) -> str | None:
    """Why the owner is taken for gone, or None while it lives or may live.

    A process of this machine is looked up. One of another machine, or of a container with process numbers of
    its own, cannot be: it is gone when nothing was heard of it for `STALE_AFTER`.
    """
    here = this_process()
    if _can_look_up(owner, here):
        gone = not _lives(owner)
    elif _is_before_this_boot(owner, here, last_heard):
        gone = True
    elif datetime.now(timezone.utc) - last_heard > STALE_AFTER:
        minutes = int(STALE_AFTER.total_seconds() // 60)
        return f"nothing was heard of process {owner.pid} on {owner.host} for more than {minutes} minutes"
    else:
        gone = False
    return f"the process {owner.pid} ended without finishing the task" if gone else None


def _can_look_up(owner: Owner, here: Owner) -> bool:
    # os.kill(pid, 0) is a question on POSIX only; on Windows it sends Ctrl-C.
    if os.name != "posix" or owner.pid_space != here.pid_space or owner.boot_id != here.boot_id:
        return False
    # The boot id names the machine better than its host name, which may change while it runs.
    return bool(here.boot_id) or owner.host == here.host


def _is_before_this_boot(owner: Owner, here: Owner, last_heard: datetime) -> bool:
    """Whether this very machine was booted after it was last heard of the owner.

    A machine of the same name that was heard of since our boot is another one (many are called localhost).
    """
    if owner.host != here.host or not owner.boot_id or owner.boot_id == here.boot_id:
        return False
    booted = _boot_time()
    return booted is not None and last_heard < booted


def _lives(owner: Owner) -> bool:
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # It exists, but belongs to somebody else.
    state, started = _state_and_start(owner.pid)
    if state in ("Z", "X"):
        return False  # It ended; its parent has not asked yet how.
    return not (started and owner.pid_started) or started == owner.pid_started


def _state_and_start(pid: int) -> tuple[str, str]:
    """The state of a process, and its start in clock ticks since boot; empty where unknown."""
    # The name of the program, in brackets, may hold blanks and brackets itself.
    fields = _read(_PROC / str(pid) / "stat").rpartition(")")[2].split()
    return (fields[0], fields[19]) if len(fields) > 19 else ("", "")


def _boot_id() -> str:
    return _read(_PROC / "sys/kernel/random/boot_id").strip()


def _pid_space() -> str:
    try:
        return os.readlink(_PROC / "self/ns/pid")
    except OSError:
        return ""


def _boot_time() -> datetime | None:
    for line in _read(_PROC / "stat").splitlines():
        name, _, value = line.partition(" ")
        if name == "btime":
            return datetime.fromtimestamp(int(value), timezone.utc)
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
