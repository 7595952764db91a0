"""What the benchmarks measure with: a process and its children, and the machine in one line."""

from __future__ import annotations

import os
import platform
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# How often memory is looked at, in seconds: seldom enough to cost nothing, often enough to see a peak.
_EVERY = 0.2


@dataclass(frozen=True)
class Measured:
    """How a command went: seconds, peak bytes of all its processes together, exit code (None: past the time-out)."""

    seconds: float
    peak: int
    code: int | None
    out: Path
    errors: str


def measure(command: Sequence[str], folder: Path, timeout: float, environment: Mapping[str, str]) -> Measured:
    """Run a command in a folder, with its output in files there, and sum up the memory of its process tree."""
    folder.mkdir(parents=True)
    out, err = folder / "out", folder / "err"
    peak, done = [0], threading.Event()
    with out.open("wb") as stdout, err.open("wb") as stderr:
        started = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        watcher = threading.Thread(target=_watch, args=(process.pid, peak, done))
        watcher.start()
        # A wait with a time-out would look only now and then, and add up to 50 ms to a short run.
        late = threading.Event()
        alarm = threading.Timer(timeout, lambda: (late.set(), _end(process)))
        alarm.start()
        try:
            process.wait()
            seconds = time.monotonic() - started
        finally:
            alarm.cancel()
            done.set()
            if process.poll() is None:
                _end(process)
            watcher.join()
    return Measured(
        seconds, peak[0], None if late.is_set() else process.returncode, out, err.read_text(errors="replace")
    )


def memory_of(root: int) -> int:
    """Bytes that a process and its children use together; pages that several of them use are counted once."""
    return sum(_pss(pid) for pid in _tree(root))


def memory_by_kind(root: int) -> dict[str, int]:
    """Bytes of a process ("driver"), and of its children: Java, the Python workers, and the processes that plan jobs."""
    found: dict[str, int] = {}
    for pid in _tree(root):
        kind = "driver" if pid == root else _kind(pid)
        found[kind] = found.get(kind, 0) + _pss(pid)
    return found


def _kind(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "ended"
    if words[0].endswith("java"):
        return "Java"
    return "workers" if "pyspark.worker" in words else "planners"


def _watch(root: int, peak: list[int], done: threading.Event) -> None:
    while True:
        peak[0] = max(peak[0], memory_of(root))
        if done.wait(_EVERY):
            return


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill it and its children, each by its number: some may have left its process group."""
    for pid in sorted(_tree(process.pid)):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _tree(root: int) -> set[int]:
    """A process, its children and theirs, and all of its session, which holds those whose parent has ended."""
    parents, found = {}, {root}
    for pid, fields in _processes():
        parents[pid] = int(fields[1])
        if int(fields[3]) == root:
            found.add(pid)
    grown = 0
    while grown != len(found):
        grown = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found


def _processes() -> Iterator[tuple[int, list[str]]]:
    """All processes, with the fields of /proc/PID/stat behind the name."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # The name, in brackets, may hold blanks.
                yield int(entry.name), (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue


def _pss(pid: int) -> int:
    """The process's share of memory: pages that several processes use are counted once in the sum."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def client_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def server_seconds(postmaster: int) -> float:
    """CPU seconds of a PostgreSQL server: its main process, its sessions and workers, also those that have ended."""
    ticks = 0
    for pid, fields in _processes():
        if pid == postmaster:
            ticks += sum(map(int, fields[11:15]))
        elif int(fields[1]) == postmaster:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def loopback_bytes() -> int:
    """Bytes that all processes of this machine have sent to one another over TCP so far."""
    lines = (line.split() for line in _lines("/proc/net/dev"))
    return next((int(fields[1]) for fields in lines if fields and fields[0] == "lo:"), 0)


def machine() -> str:
    """Cores, processor and memory of this machine."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    memory = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    load = f"load {os.getloadavg()[0]:.1f} at the start"
    return f"{os.cpu_count()} cores ({model}), {memory / 1024 / 1024:.0f} GB of memory, {load}"


def drop_caches() -> bool:
    """Forget the pages of files that the system holds in memory; only root can."""
    try:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return True


def version_of(command: Sequence[str]) -> str:
    """The first line that a program says of its version, or that it is not there."""
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "not installed"
    lines = (said.stdout or said.stderr).strip().splitlines()
    return lines[0] if lines else "unknown"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
