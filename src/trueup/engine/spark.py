"""The engine for large work: waves of Spark jobs through the DataFrame API, the same on every kind of cluster.

A wave is one Spark job over a bounded number of tasks, divided into a few slices per slot. A slice runs its tasks in a
Python worker and sends their answers to the driver.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trueup.engine.envelope import Slice, check_complete, opened
from trueup.engine.failures import ended_java, failed_job, uninterrupted
from trueup.engine.jvm import ending_of, kill_own_process, own_process, stop_session, within
from trueup.engine.slots import Cores, Share
from trueup.engine.stalls import Job, Stalls
from trueup.engine.waits import call
from trueup.engine.work import Tasks, Work, without_marks
from trueup.errors import EngineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

SLICES_PER_SLOT = 3
WAVE_SECONDS = 4.0
_LARGEST_WAVE = 4096
# Java ends jobs within this time, unless it hangs.
_INTERRUPT_SECONDS = 5.0

_log = logging.getLogger(__name__)


def size_of_wave(slots: int, tasks: float) -> int:
    """Return the size of a wave of about this many tasks: enough for all slots, and limited."""
    return min(_LARGEST_WAVE, max(slots * SLICES_PER_SLOT, int(tasks)))


def divided(tasks: Sequence[T], slices: int) -> list[Sequence[T]]:
    """Divide the tasks of a wave."""
    return [tasks[number::slices] for number in range(slices)]


class SparkEngine:
    """Runs tasks as Spark jobs of a session, which `close` stops if it is `owned`."""

    name = "spark"

    def __init__(self, session: SparkSession, share: Share, *, owned: bool, lasting: bool = False) -> None:
        self.session = session
        # Limit of the slots when the cluster grows; 0: no limit.
        self.max_slots = 0
        # How many jobs were run.
        self.jobs = 0
        # Warnings, for the result.
        self.remarks: list[str] = []
        self._stalls = Stalls(0.0, warn=self._warn)
        self._owned = owned
        # Workers that outlive the run must not keep sessions, which hold locks and snapshots.
        self._lasting = lasting or not owned
        self._share = share
        self._cores = Cores(session)
        # Runs that share the engine take turns, so that there are never more slices than slots.
        self._job_lock = threading.Lock()
        self._count()

    def limit_stalls(self, seconds: float, *, is_here: bool) -> None:
        """Let a job fail if none of its tasks is finished for this time (0: no limit), or warn if it is elsewhere.

        A Java process of this machine that hangs is killed, so the session cannot be used any more.
        """
        self._stalls.close()
        self._stalls = Stalls(seconds, warn=self._warn, end=kill_own_process if is_here and self._owned else None)

    def watched(self, also: Path | None = None, *, least: float = 0.0) -> AbstractContextManager[Job]:
        """Watch what Spark does in a block, as for the jobs of this engine; `also` is a file that workers append to.

        It has `least` seconds at least.
        """
        return self._stalls.watched(also, least=least)

    def check(self) -> None:
        """Raise EngineError if the Java process that this process started has ended. Starts no job."""
        java = own_process()
        if java is not None and java.poll() is not None:
            raise ended_java(ending_of(java) or "has ended")

    def run(self, work: Work[T], tasks: Tasks[T]) -> Iterator[Any]:
        """Run waves until the queue is empty; the size of a wave is adjusted so that it takes a few seconds."""
        tasks.ran_on = self.name
        size = self.slots * SLICES_PER_SLOT
        while wave := tasks.take(size):
            started = time.monotonic()
            yield from without_marks(self._wave(work, wave), len(wave), at_mark=tasks.finished)
            seconds = max(time.monotonic() - started, 0.001)
            with self.watched():
                self._count()
            if len(wave) == size:
                size = size_of_wave(self.slots, size * min(WAVE_SECONDS / seconds, 2))

    def _count(self) -> None:
        """Count the slots, which change with the executors."""
        cores = self._cores.now()
        slots = self._share.of(cores)
        self.slots = min(slots, self.max_slots) if self.max_slots else slots
        # Spark starts a slice on every free core. If not all cores may be used, or connections are limited, there are
        # no more slices than slots, and a slice closes its sessions when it ends.
        self._limited = self.slots < cores or self._share.is_part

    def _wave(self, work: Work[T], wave: Sequence[T]) -> Iterator[Any]:
        slices = min(len(wave), self.slots * (1 if self._limited else SLICES_PER_SLOT))
        with self._job_lock:
            results = self._job(work, divided(wave, slices), keep=not (self._limited or self._lasting))
        for batch in results:
            for result in batch:
                yield opened(result.as_py())

    def _job(self, work: Work[T], deals: Sequence[Sequence[T]], *, keep: bool, tag: str = "") -> Sequence[Any]:
        """Run one slice per deal; return the packed answers, in batches."""
        self.jobs += 1
        try:
            with self.watched() as job, closing(Slice.of(work, deals, keep=keep, file=job.path)) as packed:

                def run_job() -> Sequence[Any]:
                    # A tag is one of the thread.
                    with self._tagged(tag):
                        return self.collected(packed)

                if self._owned and threading.current_thread() is threading.main_thread():
                    # After Ctrl-C, PySpark waits for the end of the job. A session of the program has its own handler.
                    return call(run_job)
                return run_job()
        except EngineError:
            raise
        except KeyboardInterrupt:
            # In a session that is not stopped the job would continue.
            self.interrupt()
            raise
        except Exception as error:
            raise failed_job(uninterrupted(error)) from error

    def collected(self, packed: Slice) -> Sequence[Any]:
        """Run the slices as one job; return the packed answers, in batches. After Ctrl-C, it waits for the job."""
        slices = packed.slices
        frame = self.session.range(0, slices, 1, slices).mapInArrow(packed, "result binary")
        batches: Sequence[Any] = frame.toArrow().column(0).chunks
        return batches

    @contextmanager
    def _tagged(self, tag: str) -> Iterator[None]:
        """Give the jobs of this thread a tag, in the block."""
        if not tag:
            yield
            return
        self.session.sparkContext.addJobTag(tag)
        try:
            yield
        finally:
            with suppress(Exception):
                self.session.sparkContext.removeJobTag(tag)

    def warm_up(self, work: Work[T]) -> None:
        """Start the Python workers, and let them import what the work needs; no task runs.

        It is not watched: on a busy machine it may take long, and meanwhile threads do the work.
        """
        self.jobs += 1
        try:
            with closing(Slice.of(work, [()] * self.slots, keep=False)) as packed:
                self.collected(packed)
        except Exception as error:
            raise failed_job(error) from error

    def wave(self, work: Work[T], deals: Sequence[Sequence[T]], tag: str, *, keep: bool = False) -> list[bytes]:
        """Run one slice per deal, as one job; return the packed answers of all tasks, with marks, or raise.

        The caller has the slots for it, and there may be other jobs at the same time. Workers close their sessions with
        the nodes, or `keep` them for the next wave.
        """
        batches = self._job(work, deals, keep=keep, tag=tag)
        results = [result.as_py() for batch in batches for result in batch]
        check_complete(results, sum(map(len, deals)))
        return results

    def interrupt_wave(self, tag: str) -> None:
        """End the job with this tag."""
        within(_INTERRUPT_SECONDS, lambda: self.session.sparkContext.cancelJobsWithTag(tag))

    def interrupt(self) -> None:
        """End the running jobs."""
        within(_INTERRUPT_SECONDS, self.session.interruptAll)

    def close(self) -> None:
        """Stop the session if it is owned."""
        if self._owned:
            # Once: later the Java process of this process may be another one.
            self._owned = False
            stop_session(self.session)
        self._stalls.close()

    def _warn(self, text: str) -> None:
        """Warn, and once in the result: a warning may be repeated for hours."""
        if not self.remarks:
            self.remarks.append(text)
        _log.warning("%s", text)
