"""What runs: the processes of a server, its pid file, and the watchdog that ends it with its parent."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

# $1 is the data folder, all others are folders to remove. A word on the pipe means: all was stopped in order.
# The pid comes from the server's own file, which may be written an instant after the parent was killed; a
# negative pid is initdb's, which ends by itself. A pid that now belongs to somebody else is left alone.
_WATCHDOG = """
if read -r word; then exit 0; fi
data=$1; shift; tries=0; told=
while [ $tries -lt 30 ]; do
    pid=; [ -r "$data/postmaster.pid" ] && read -r pid < "$data/postmaster.pid"
    case $pid in
        ''|-*) [ -z "$told" ] || break ;;
        *)
            [ ! -e /proc/self/cmdline ] || grep -qF -- "$data" "/proc/$pid/cmdline" || break
            kill -QUIT "$pid" && kill -CONT "$pid" || break
            told=yes ;;
    esac
    tries=$((tries + 1)); sleep 0.1
done
[ $tries -lt 30 ] || [ -z "$told" ] || kill -KILL "$pid"
[ $# -eq 0 ] || rm -rf -- "$@"
"""


def start_watchdog(data_dir: Path, remove: Sequence[Path]) -> subprocess.Popen[bytes]:
    """A small shell process that holds one end of a pipe to us.

    When our end closes without a word, we are gone: then it stops the server of the data folder, and removes
    the given folders. The kernel closes our end however we end; no handler of ours could promise that.
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
    """All was stopped and removed in order."""
    if watchdog.stdin is not None:
        with contextlib.suppress(BrokenPipeError), watchdog.stdin:
            watchdog.stdin.write(b"stopped\n")
    watchdog.wait()


def read_pid_file(data_dir: Path) -> tuple[int | None, str, int | None]:
    """The pid, the status and the shared memory segment in postmaster.pid, as far as they are written."""
    try:
        lines = (data_dir / "postmaster.pid").read_text().splitlines()
    except OSError:
        return None, "", None
    lines += [""] * (8 - len(lines))
    pid = int(lines[0]) if lines[0].strip().isdigit() else None
    memory = lines[6].split()
    return pid, lines[7].strip(), int(memory[1]) if len(memory) == 2 else None


def forget_stale_pid(data_dir: Path) -> None:
    """Remove the pid file of a server that is gone: if its pid is in use again, the next one would refuse."""
    pid = read_pid_file(data_dir)[0]
    if pid is not None and not is_postmaster(pid, data_dir):
        (data_dir / "postmaster.pid").unlink(missing_ok=True)


def is_postmaster(pid: int, data_dir: Path) -> bool:
    """Whether the process is the server of this data folder, and not another one with the same pid."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        if Path("/proc/self").exists():
            return False
        arguments = _ps("-o", "args=", "-p", str(pid)).split()
    return str(data_dir) in arguments


def children(pid: int) -> list[int]:
    return [child for child, parent, _ in _processes() if parent == pid]


def is_gone(pid: int) -> bool:
    """Whether the process ended; a zombie that nobody collected has ended too."""
    return all(state == "Z" for other, _, state in _processes() if other == pid)


def _processes() -> list[tuple[int, int, str]]:
    """All processes of the machine: pid, parent and the letter of the state."""
    found = []
    if Path("/proc/self/stat").exists():
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    # The program's name stands in brackets, and may hold blanks and brackets itself.
                    state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                    found.append((int(entry.name), int(parent), state))
    else:
        for line in _ps("-A", "-o", "pid=,ppid=,stat=").splitlines():
            one, parent, state = line.split()
            found.append((int(one), int(parent), state[0]))
    return found


def _ps(*options: str) -> str:
    return subprocess.run(["ps", *options], capture_output=True, text=True, check=False).stdout


def wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    """Wait for the condition; False if it did not come true in time (in seconds)."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
