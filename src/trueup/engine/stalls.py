"""Notice a Spark job that hangs: its Java process or a Python worker does not run, and nothing else would tell.

Python workers on this machine append a byte to a file for each task that they finish, and while they wait for a server
or for a limit. A thread of the driver looks at the file while a job runs. On a cluster there is no such file, and a job
is expected to end within the time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trueup.engine.scratch import ScratchFolder
from trueup.errors import EngineError

# How often a file is looked at; more often if the limit is short.
_LOOK_SECONDS = 1.0
_BEAT_SECONDS = 1.0
# Tasks that take long: the limit is at least this many times the longest time between the ends of two of them.
_TIMES = 10.0


class Job:
    """A job that is watched."""

    def __init__(self, file: Path | None, also: Path | None = None) -> None:
        self.file = file
        self._also = also
        # Why it was ended.
        self.error: EngineError | None = None
        self.is_done = threading.Event()

    @property
    def path(self) -> str:
        """The file for the workers; '' if there is none."""
        return str(self.file) if self.file is not None else ""

    def finished(self) -> int:
        """Return how many tasks are finished, as far as it is known."""
        try:
            return sum(file.stat().st_size for file in (self.file, self._also) if file is not None)
        except OSError:
            # Something has removed it: nothing is known any more, so the job is not ended.
            self.file = self._also = None
            return 0


class Stalls:
    """Watches the jobs of a session: if no task is finished for `seconds`, `end` is called, or the user is warned.

    `end` ends the Java process of the session and returns whether there was one; without it, jobs are not ended.
    """

    def __init__(self, seconds: float, *, warn: Callable[[str], object], end: Callable[[], bool] | None = None) -> None:
        self._seconds = seconds
        self._warn = warn
        self._end = end
        self._folder = ScratchFolder("trueup-jobs-") if seconds and end is not None else None
        self._number = 0
        self._longest = 0.0
        self._lock = threading.Lock()

    @contextmanager
    def watched(self, also: Path | None = None, *, least: float = 0.0) -> Iterator[Job]:
        """Watch the job of the block; if it was ended, raise why. `also` is another file that its workers append to.

        `least` are the seconds that this job has at least.
        """
        file = self._file()
        job = Job(file, also if file is not None else None)
        if self._seconds:
            threading.Thread(target=self._watch, args=(job, least), name="trueup-stalls", daemon=True).start()
        try:
            yield job
        except Exception as error:
            if job.error is not None:
                raise job.error from error
            raise
        finally:
            job.is_done.set()
            if job.file is not None:
                job.file.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the files."""
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.close()

    def _file(self) -> Path | None:
        with self._lock:
            if self._folder is None:
                return None
            self._number += 1
            file = self._folder.path / str(self._number)
        file.touch(0o600)
        return file

    def _watch(self, job: Job, least: float) -> None:
        look = min(_LOOK_SECONDS, self._seconds / 10)
        finished, quiet, limit = 0, 0.0, max(self._seconds, least)
        while not job.is_done.wait(look):
            now = job.finished()
            if now != finished:
                finished, self._longest, quiet = now, max(self._longest, quiet), 0.0
                continue
            # Not by the clock: while this process is stopped (Ctrl-Z), so are Java and its workers.
            quiet += look
            if quiet < max(limit, self._longest * _TIMES):
                continue
            limit += self._seconds
            if self._is_ended(job, quiet):
                return

    def _is_ended(self, job: Job, quiet: float) -> bool:
        with self._lock:
            if job.is_done.is_set():
                return True
            if job.file is not None and self._end is not None:
                job.error = EngineError(
                    f"no task of the Spark job was finished for {quiet:,.0f} s, and its Java process was ended",
                    cure="check whether the machine has too little memory; raise stall_seconds in [spark] if single"
                    " tasks take that long, or use --engine local",
                )
                if self._end():
                    return True
                job.error = None
        self._warn(
            f"a Spark job has had no result for {quiet:,.0f} s, and the run waits for it: check the executors and the"
            " nodes, or stop the run and resume it"
        )
        return False


@contextmanager
def beating(path: str) -> Iterator[None]:
    """Record every second, in the file of a job, that this process runs while it waits in the block."""
    if not path:
        yield
        return
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(_BEAT_SECONDS):
            beat(path)

    thread = threading.Thread(target=run, name="trueup-beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def beat(path: str) -> None:
    """Record the end of a task in the file of its job, if the job has one that still exists."""
    if path:
        with suppress(OSError):
            file = os.open(path, os.O_WRONLY | os.O_APPEND)
            try:
                os.write(file, b".")
            finally:
                os.close(file)
