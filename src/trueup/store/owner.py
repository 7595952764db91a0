"""Identifies the process that runs a task, and decides whether that process still exists."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import psutil

STALE_AFTER = timedelta(minutes=10)
PROC = Path("/proc")
# The system clock can be set between two readings of the boot time, which moves a start time by as much.
_START_TOLERANCE = timedelta(seconds=2)
_TICKS_PER_SECOND = 100


@dataclass(frozen=True)
class Owner:
    """The identity of a process, which also differs from that of a later process with the same pid.

    `boot_id`, `pid_space` (the pid namespace) and `pid_started` are empty where the system does not provide them.
    """

    host: str
    boot_id: str
    pid_space: str
    pid: int
    # Start of the process in ticks of 1/100 second since boot, independent of the system clock.
    pid_started: str


def this_process() -> Owner:
    """Return the identity of the calling process."""
    pid = os.getpid()
    return Owner(socket.gethostname(), _boot_id(), _pid_namespace(), pid, process_start(pid))


def why_lost(owner: Owner, last_heartbeat: datetime) -> str | None:
    """Return why the owner is considered dead, or None while it is alive or may be.

    A process of this machine is looked up by pid. A process of another machine or pid namespace cannot be looked up:
    it is considered dead after `STALE_AFTER` without a heartbeat.
    """
    current = this_process()
    if _is_local(owner, current):
        is_dead = not is_alive(owner)
    elif _is_before_this_boot(owner, current, last_heartbeat):
        is_dead = True
    elif datetime.now(timezone.utc) - last_heartbeat > STALE_AFTER:
        minutes = int(STALE_AFTER.total_seconds() // 60)
        return f"process {owner.pid} on {owner.host} sent no heartbeat for more than {minutes} minutes"
    else:
        is_dead = False
    return f"process {owner.pid} ended without finishing the task" if is_dead else None


def is_alive(owner: Owner) -> bool:
    """Return whether the process of a local owner exists; a zombie, or another process with its pid, does not count."""
    try:
        status = psutil.Process(owner.pid).status()
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
    if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
        return False
    start = process_start(owner.pid)
    if not (start and owner.pid_started):
        return True
    difference = abs(int(start) - int(owner.pid_started)) / _TICKS_PER_SECOND
    return difference <= _START_TOLERANCE.total_seconds()


def process_start(pid: int) -> str:
    """Return the start of a process in ticks since boot, or an empty string if it cannot be read."""
    try:
        seconds = psutil.Process(pid).create_time() - psutil.boot_time()
    except (psutil.Error, OSError):
        return ""
    return str(round(seconds * _TICKS_PER_SECOND))


def boot_time() -> datetime:
    """Return when this machine was booted."""
    return datetime.fromtimestamp(psutil.boot_time(), timezone.utc)


def _is_local(owner: Owner, current: Owner) -> bool:
    if owner.pid_space != current.pid_space or owner.boot_id != current.boot_id:
        return False
    # A boot id identifies the machine better than its host name, which can change at run time.
    return bool(current.boot_id) or owner.host == current.host


def _is_before_this_boot(owner: Owner, current: Owner, last_heartbeat: datetime) -> bool:
    """Return whether this machine was rebooted after the last heartbeat of the owner.

    A heartbeat after our boot comes from another machine with the same name (many are called localhost).
    """
    if owner.host != current.host or not owner.boot_id or owner.boot_id == current.boot_id:
        return False
    return last_heartbeat < boot_time()


def _boot_id() -> str:
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return os.readlink(PROC / "self/ns/pid")
    except OSError:
        return ""
