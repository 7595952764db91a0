"""One run of a job: a process of its own, held by a lock that outlives the scheduler, and a task that tells of it."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import IO

from trueup.config.secrets import mask
from trueup.errors import StoreError
from trueup.store import COMPLETED, FAILED, INTERRUPTED, Task, TaskStore
from trueup.verbs.schedule.model import SCHEDULED, Job

# Lines of what a job said that the task store keeps.
_KEPT_LINES = 20
_LISTEN_SECONDS = 0.2
_MEANING = {0: "ok", 1: "differences", 2: "trouble", 130: "interrupted"}


class Runner:
    """Starts jobs, never two of the same at once, and ends those that are under way."""

    def __init__(self, store: TaskStore, env: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._store = store
        self._env = env
        self._tell = say
        self._lock = threading.Lock()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._stopping = False

    def run(self, job: Job) -> None:
        """Run a job and wait for its end. Never raises: what goes wrong with one job is no trouble of the others."""
        try:
            self._run(job)
        except Exception as error:
            self._say(f"{job.name}: could not be run: {type(error).__name__}: {error}")

    def stop(self, *, kill: bool = False) -> list[str]:
        """Start nothing more, and ask every job that is under way to end, or kill it; returns their names."""
        with self._lock:
            self._stopping = True
            for process in self._running.values():
                if not kill:
                    process.send_signal(signal.SIGTERM)
                elif process.poll() is None:
                    # With all that it has started.
                    os.killpg(process.pid, signal.SIGKILL)
            return list(self._running)

    @property
    def is_busy(self) -> bool:
        """Whether a job is under way."""
        return bool(self._running)

    def _say(self, text: str) -> None:
        # What is typed into a configuration, or said by a command, may hold a password.
        self._tell(mask(text))

    def _run(self, job: Job) -> None:
        lock = _lock_of(self._store, job)
        if lock is None:
            self._say(f"{job.name}: is still running, so this time is left out")
            return
        with lock:
            task = self._store.start(SCHEDULED, table=job.name, context=_context(job))
            try:
                self._work(job, task, lock)
            except BaseException as error:
                self._store.finish(task.task_id, FAILED, error=f"{type(error).__name__}: {error}")
                raise

    def _work(self, job: Job, task: Task, lock: IO[str]) -> None:
        begun = time.monotonic()
        process = self._started(job, lock)
        if process is None:
            self._store.finish(task.task_id, INTERRUPTED, error="the schedule was stopped")
            return
        try:
            said = self._listen(job, process)
        finally:
            with self._lock:
                self._running.pop(job.name, None)
        code = process.returncode
        # A job that was ended by us says 130, or nothing any more.
        stopped = self._stopping and code not in (0, 1)
        meaning = _MEANING.get(code, f"killed by signal {-code}" if code < 0 else f"exit code {code}")
        self._say(f"{job.name}: {meaning}, {time.monotonic() - begun:.1f} s")
        self._store.finish(
            task.task_id,
            INTERRUPTED if stopped else COMPLETED if code in (0, 1) else FAILED,
            summary={
                "exit_code": code,
                "meaning": meaning,
                "tasks": self._tasks_of(process.pid, task),
                "said": "\n".join(said),
            },
            error=None if code in (0, 1) else "; ".join(list(said)[-3:]) or meaning,
        )

    def _started(self, job: Job, lock: IO[str]) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._stopping:
                return None
            self._say(f"{job.name}: {job.command}")
            # Not a pipe: a job that outlives the scheduler would end at the next word it says.
            new = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
            with open(os.open(_file(self._store, job, "log"), new, 0o600), "wb") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "trueup", job.verb, *job.arguments],
                    env={**os.environ, **self._env},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    # Ctrl-C at the terminal is for the scheduler, which tells its jobs.
                    start_new_session=True,
                    # The job holds the lock, too: after the scheduler was killed, none is begun beside it.
                    pass_fds=(lock.fileno(),),
                )
            self._running[job.name] = process
            return process

    def _listen(self, job: Job, process: subprocess.Popen[bytes]) -> deque[str]:
        """Pass on what a job says, with its name before it, until its end; returns the last lines."""
        said: deque[str] = deque(maxlen=_KEPT_LINES)
        with open(_file(self._store, job, "log"), encoding="utf-8", errors="replace") as log:
            rest, is_over = "", False
            while not is_over:
                # Asked before reading: whatever was said until then is read.
                is_over = process.poll() is not None
                *lines, rest = (rest + log.read()).split("\n")
                for line in [*lines, *([rest] if is_over else [])]:
                    if line.strip():
                        said.append(line.rstrip())
                        self._say(f"{job.name} | {line.rstrip()}")
                if not is_over:
                    time.sleep(_LISTEN_SECONDS)
        return said

    def _tasks_of(self, pid: int, task: Task) -> list[str]:
        """The tasks that the process has left in the store."""
        recent = self._store.list(limit=200)
        return [each.task_id for each in recent if each.pid == pid and each.started_at >= task.started_at]


def _context(job: Job) -> dict[str, str]:
    return {"job": job.name, "command": job.command, "when": job.when, "config": job.config}


def _file(store: TaskStore, job: Job, kind: str) -> Path:
    """A file of a job beside the task store, for its owner only."""
    home = sha256(job.config.encode()).hexdigest()[:8]
    return Path(store.folder(), f"job-{home}-{job.name}.{kind}")


def _lock_of(store: TaskStore, job: Job) -> IO[str] | None:
    """The lock of a job, held until the file is closed here and in the job's process; None if somebody has it."""
    path = _file(store, job, "lock")
    try:
        file = open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+")  # noqa: SIM115
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}", cure="check the folder of the task store") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
