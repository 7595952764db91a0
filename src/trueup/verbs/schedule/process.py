"""One run of a job: a separate process, a lock that outlives the scheduler, and a task with the result."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import IO

from trueup.config.files import open_private
from trueup.config.process import own_command
from trueup.config.secrets import mask
from trueup.errors import StoreError
from trueup.store import COMPLETED, FAILED, INTERRUPTED, Task, TaskStore
from trueup.verbs.schedule.model import SCHEDULED, Job

_log = logging.getLogger(__name__)
# Lines of the output of a job that the task store keeps.
_KEPT_LINES = 20
_POLL_SECONDS = 0.2
_MEANING = {0: "ok", 1: "differences", 2: "trouble", 130: "interrupted"}


class Runner:
    """Runs jobs, never the same job twice at a time, and ends running jobs."""

    def __init__(self, store: TaskStore, env: Mapping[str, str]) -> None:
        self._store = store
        self._env = env
        self._lock = threading.Lock()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._stopping = False

    def run(self, job: Job) -> None:
        """Run a job and wait for its end. Never raises: an error of one job must not affect the others."""
        try:
            self._run(job)
        except Exception as error:
            _note(job, f"cannot be run: {type(error).__name__}: {error}", logging.ERROR)

    def stop(self, *, kill: bool = False) -> list[str]:
        """Start no more jobs, and terminate (or kill) the running ones. Return their names."""
        with self._lock:
            self._stopping = True
            for process in self._running.values():
                if not kill:
                    process.send_signal(signal.SIGTERM)
                elif process.poll() is None:
                    # The whole process group, including its children.
                    os.killpg(process.pid, signal.SIGKILL)
            return list(self._running)

    @property
    def is_busy(self) -> bool:
        """Whether a job is running."""
        return bool(self._running)

    def _run(self, job: Job) -> None:
        # A time between the end of the job and that of the scheduler: nothing starts, so there is nothing to record.
        if self._stopping:
            return
        lock = _lock_of(self._store, job)
        if lock is None:
            _note(job, "still running; this time is skipped", logging.WARNING)
            return
        with lock:
            task = self._store.start(SCHEDULED, table=job.name, context=_context(job))
            try:
                self._work(job, task, lock)
            except BaseException as error:
                self._store.finish(task.task_id, FAILED, error=f"{type(error).__name__}: {error}")
                raise

    def _work(self, job: Job, task: Task, lock: IO[str]) -> None:
        started = time.monotonic()
        process = self._start(job, lock)
        if process is None:
            self._store.finish(task.task_id, INTERRUPTED, error="the schedule was stopped")
            return
        try:
            lines = self._forward_output(job, process)
        finally:
            with self._lock:
                self._running.pop(job.name, None)
        code = process.returncode
        # A job that was terminated exits with 130 or by a signal.
        stopped = self._stopping and code not in (0, 1)
        meaning = _MEANING.get(code, f"killed by signal {-code}" if code < 0 else f"exit code {code}")
        level = logging.INFO if code in (0, 1) else logging.WARNING
        _note(job, f"{meaning}, {time.monotonic() - started:.1f} s", level)
        self._store.finish(
            task.task_id,
            INTERRUPTED if stopped else COMPLETED if code in (0, 1) else FAILED,
            summary={
                "exit_code": code,
                "meaning": meaning,
                "tasks": self._tasks_of(process.pid, task),
                "said": "\n".join(lines),
            },
            error=None if code in (0, 1) else "; ".join(list(lines)[-3:]) or meaning,
        )

    def _start(self, job: Job, lock: IO[str]) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._stopping:
                return None
            _note(job, job.command)
            # Not a pipe: a job that outlives the scheduler would fail at its next output.
            flags = os.O_WRONLY | os.O_TRUNC | os.O_APPEND
            with open(open_private(_file(self._store, job, "log"), flags), "wb") as log:
                process = subprocess.Popen(
                    [*own_command(), job.verb, *job.arguments],
                    env={**os.environ, **self._env},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    # Ctrl-C in the terminal reaches only the scheduler, which terminates its jobs.
                    start_new_session=True,
                    # The job holds the lock as well: if the scheduler is killed, the job is not started a second time.
                    pass_fds=(lock.fileno(),),
                )
            self._running[job.name] = process
            return process

    def _forward_output(self, job: Job, process: subprocess.Popen[bytes]) -> deque[str]:
        """Forward the output of a job, prefixed with its name, until it ends. Return the last lines."""
        kept: deque[str] = deque(maxlen=_KEPT_LINES)
        with open(_file(self._store, job, "log"), encoding="utf-8", errors="replace") as log:
            rest, has_ended = "", False
            while not has_ended:
                # Polled before reading, so that all output is read.
                has_ended = process.poll() is not None
                *lines, rest = (rest + log.read()).split("\n")
                for line in [*lines, *([rest] if has_ended else [])]:
                    if line.strip():
                        kept.append(line.rstrip())
                        _log.info("%s | %s", job.name, mask(line.rstrip()), extra={"job": job.name})
                if not has_ended:
                    time.sleep(_POLL_SECONDS)
        return kept

    def _tasks_of(self, pid: int, task: Task) -> list[str]:
        """Return the tasks that the process recorded in the store."""
        recent = self._store.list(limit=200)
        return [other.task_id for other in recent if other.pid == pid and other.started_at >= task.started_at]


def _note(job: Job, text: str, level: int = logging.INFO) -> None:
    # The configuration and the output of a command may contain a password.
    _log.log(level, "%s: %s", job.name, mask(text), extra={"job": job.name})


def _context(job: Job) -> dict[str, str]:
    return {"job": job.name, "command": job.command, "when": job.when, "config": job.config}


def _file(store: TaskStore, job: Job, kind: str) -> Path:
    """Return the path of a private file of a job, next to the task store."""
    config = sha256(job.config.encode()).hexdigest()[:8]
    return Path(store.folder(), f"job-{config}-{job.name}.{kind}")


def _lock_of(store: TaskStore, job: Job) -> IO[str] | None:
    """Take the lock of a job; None if it is held. It is held until the file is closed here and in the job's process."""
    path = _file(store, job, "lock")
    try:
        file = open(open_private(path, os.O_RDWR), "r+")  # noqa: SIM115
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}", cure="check the folder of the task store") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
