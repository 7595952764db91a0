"""The engine of "auto": threads of this process begin at once, and Spark takes over work that lasts.

One loop per run takes tasks from the queue: for threads at first, and for waves when Spark is ready. A task is taken
by one of them, and its answers are yielded when all of them are here. So a wave that fails has yielded nothing, and
its tasks are put back into the queue.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Generic, Protocol, TypeVar

from trueup.db.reader import close_idle
from trueup.engine.background import BackgroundStart
from trueup.engine.envelope import FINISHED, opened
from trueup.engine.local import answers_of
from trueup.engine.permits import Permits
from trueup.engine.slots import IdleCores
from trueup.engine.spark import SLICES_PER_SLOT, WAVE_SECONDS, divided, size_of_wave
from trueup.engine.waits import wait_for
from trueup.engine.work import Tasks, Work
from trueup.errors import EngineError

T = TypeVar("T")

# The rate of a run is known after this many seconds of work.
MEASURED_SECONDS = 1.0
# Less work than this stays on threads, also when Spark is ready.
WORTH_SECONDS = 2.0
# Spark is started if at least this many cores were idle.
_IDLE_CORES = 0.5
# A start that takes longer than this is reported, also if threads have done the work meanwhile.
SLOW_START_SECONDS = 60.0
# Spark ends the Python workers of a job within this time.
_END_SECONDS = 10.0

_log = logging.getLogger(__name__)


class Waves(Protocol):
    """What runs the waves: Spark on this machine."""

    def warm_up(self, work: Work[T]) -> None:
        """Prepare for this work."""

    def wave(self, work: Work[T], deals: Sequence[Sequence[T]], tag: str, *, keep: bool) -> list[bytes]:
        """Return the packed answers of all tasks, each with its mark, or raise; workers may `keep` their sessions."""
        ...

    def interrupt_wave(self, tag: str) -> None:
        """End the wave with this tag."""

    def interrupt(self) -> None:
        """End all waves."""

    def close(self) -> None:
        """Stop it."""


class HandOverEngine:
    """Runs tasks on threads, and on Spark when the rest of a run is expected to take more than `seconds`.

    With 0, Spark starts as soon as the rate is known, also if no core is idle.
    """

    def __init__(self, slots: int, spark: BackgroundStart[Any], *, seconds: float, max_connections: int = 0) -> None:
        self.slots = self.max_slots = slots
        # Warnings, for the result.
        self.remarks: list[str] = []
        self._start = spark
        self._seconds = seconds
        self._max_connections = max_connections
        self._permits = Permits(slots)
        self._threads = ThreadPoolExecutor(slots, thread_name_prefix="trueup")
        self._wave_threads = ThreadPoolExecutor(slots, thread_name_prefix="trueup-wave")
        self._lock = threading.Lock()
        # Spark, while it can be used; afterwards no wave is started.
        self._waves: Waves | None = None
        self._is_over = False
        self._is_start_noted = False
        self._has_run_waves = False
        self._interrupted = False

    @property
    def name(self) -> str:
        """The engines that have run tasks."""
        return "local+spark" if self._has_run_waves else "local"

    def run(self, work: Work[T], tasks: Tasks[T]) -> Iterator[Any]:
        """Run the queue until it is empty and nothing is running."""
        run = _Run(work, tasks)
        with self._permits.used_by_run():
            try:
                while True:
                    self._give(run)
                    if not run.running:
                        self._note_slow_start()
                        return
                    done, _ = wait_for(run.running, FIRST_COMPLETED)
                    for future in done:
                        yield from self._answers(run, future)
                    if self._needs_spark(run):
                        self._start.begin(lambda waves: waves.warm_up(work))
            finally:
                self._end(run)

    def interrupt(self) -> None:
        """End the running waves: stopping a run cancels the queries that the threads wait for."""
        self._interrupted = True
        if (waves := self._waves) is not None:
            waves.interrupt()

    def close(self) -> None:
        """End the threads, and a start of Spark that is not finished; stop Spark."""
        self._start.close()
        self._wave_threads.shutdown(wait=True, cancel_futures=True)
        self._threads.shutdown(wait=True, cancel_futures=True)

    @property
    def _is_limited(self) -> bool:
        """Whether threads and Python workers must not have sessions with the nodes at the same time."""
        return bool(self._max_connections) or self.max_slots < 2 * self.slots

    def _needs_spark(self, run: _Run[Any]) -> bool:
        """Whether much work is left and cores are idle: on cores that are busy, Spark only takes time from the rest."""
        is_long = run.seconds_left() > self._seconds
        return is_long and (not self._seconds or run.idle_cores.now() >= _IDLE_CORES)

    def _give(self, run: _Run[Any]) -> None:
        """Give the next tasks of a run to threads, or to Spark."""
        waves = self._for_waves(run)
        if waves is None:
            for task in run.take(self.slots - len(run.on_threads)):
                run.on_threads[self._threads.submit(self._on_thread, run.work, task)] = task
            return
        run.take_back()
        # While threads of this run have all slots, their answers come first.
        if run.wave is None and (not run.running or self._permits.has_free()):
            self._start_wave(run, waves)

    def _for_waves(self, run: _Run[Any]) -> Waves | None:
        """Return Spark if it is ready and the run has enough work left."""
        with self._lock:
            if self._waves is None and not self._is_over and self._start.is_done:
                try:
                    self._waves = self._start.result()
                except EngineError as error:
                    self._is_over = True
                    self._warn("Spark was not started, and threads of this process do all the work", error)
            waves = self._waves
        run.is_handed_over = run.is_handed_over or (waves is not None and run.seconds_left() > WORTH_SECONDS)
        return waves if run.is_handed_over else None

    def _start_wave(self, run: _Run[Any], waves: Waves) -> None:
        tasks = run.take(self._size_of_wave(run))
        if not tasks:
            return
        slots = self._permits.take_most()
        try:
            self._has_run_waves = True
            close_idle()
            # Spark starts a slice on every free core, also on those of the slots that threads have.
            slices = slots * (SLICES_PER_SLOT if slots == self.slots else 1)
            deals = divided(tasks, min(len(tasks), slices))
            tag = f"trueup-{uuid.uuid4().hex}"
            future = self._wave_threads.submit(self._on_spark, waves, run.work, deals, slots, tag)
        except BaseException:
            self._permits.give_back(slots)
            raise
        run.wave = _Wave(future, slots, tasks, waves, tag)

    def _size_of_wave(self, run: _Run[Any]) -> int:
        if run.on_threads:
            # A short one: slots of threads that end meanwhile are idle until the next one.
            return self.slots
        return size_of_wave(self.slots, run.rate() * WAVE_SECONDS)

    def _on_thread(self, work: Work[T], task: T) -> list[Any]:
        self._permits.take_one()
        try:
            return answers_of(work, task)
        finally:
            if self._has_run_waves and self._is_limited:
                # Its slot may be taken by a wave, which opens sessions of its own.
                close_idle()
            self._permits.give_back()

    def _on_spark(self, waves: Waves, work: Work[T], deals: Sequence[Sequence[T]], slots: int, tag: str) -> list[bytes]:
        try:
            return waves.wave(work, deals, tag, keep=not self._is_limited)
        finally:
            self._permits.give_back(slots)

    def _answers(self, run: _Run[Any], future: Future[Any]) -> Iterator[Any]:
        if run.wave is None or future is not run.wave.future:
            del run.on_threads[future]
            run.tasks.ran_on = "local"
            yield from future.result()
            run.finished()
            return
        wave, run.wave = run.wave, None
        try:
            results = future.result()
        except Exception as error:
            if self._interrupted:
                raise
            self._lose(wave.waves, error)
            run.tasks.put_back(wave.tasks)
            return
        run.tasks.ran_on = "spark"
        for result in results:
            if result == FINISHED:
                run.finished()
            else:
                yield opened(result)

    def _note_slow_start(self) -> None:
        """Add a warning if Spark has been starting for a long time: its Java process may hang."""
        waited = self._start.waited_seconds
        with self._lock:
            if waited > SLOW_START_SECONDS and not self._is_start_noted:
                self._is_start_noted = True
                text = f"Spark has not started within {waited:.0f} s, and threads of this process did the work"
                self._warn(text, EngineError("its Java process may hang"))

    def _lose(self, waves: Waves, error: Exception) -> None:
        """Use no more Spark: a wave has failed, and not one of its tasks."""
        with self._lock:
            if self._is_over:
                return
            self._waves, self._is_over = None, True
            self._warn("Spark was lost, and threads of this process do the rest of the work", error)
        waves.close()

    def _warn(self, what: str, error: Exception) -> None:
        text = f"{what}: {getattr(error, 'message', error)}"
        self.remarks.append(text)
        _log.warning("%s", text)

    def _end(self, run: _Run[Any]) -> None:
        """End what a run has left running when its caller does not want more answers."""
        for future in run.on_threads:
            future.cancel()
        if run.wave is None:
            return
        if run.wave.future.cancel():
            self._permits.give_back(run.wave.slots)
        elif not run.wave.future.done():
            run.wave.waves.interrupt_wave(run.wave.tag)
            wait([run.wave.future], timeout=_END_SECONDS)


class _Wave:
    """A wave that is running."""

    def __init__(self, future: Future[list[bytes]], slots: int, tasks: Sequence[Any], waves: Waves, tag: str) -> None:
        self.future = future
        self.slots = slots
        self.tasks = tasks
        self.waves = waves
        self.tag = tag


class _Run(Generic[T]):
    """The queue of a run, what is running, and how fast it is."""

    def __init__(self, work: Work[T], tasks: Tasks[T]) -> None:
        self.work = work
        self.tasks = tasks
        self.on_threads: dict[Future[list[Any]], T] = {}
        self.wave: _Wave | None = None
        self.is_handed_over = False
        self.idle_cores = IdleCores()
        self._began = time.monotonic()
        self._finished = 0

    @property
    def running(self) -> list[Future[Any]]:
        """What is running."""
        return [*self.on_threads, *([self.wave.future] if self.wave else [])]

    def take(self, count: int) -> list[T]:
        """Take tasks from the queue; the time for which a paused run waits here is no work."""
        before = time.monotonic()
        try:
            return self.tasks.take(count)
        finally:
            self._began += time.monotonic() - before

    def take_back(self) -> None:
        """Put tasks that no thread has begun back into the queue."""
        waiting = [future for future in self.on_threads if future.cancel()]
        self.tasks.put_back([self.on_threads.pop(future) for future in waiting])

    def finished(self) -> None:
        """Count a finished task."""
        self._finished += 1
        self.tasks.finished()

    def rate(self) -> float:
        """Return the tasks per second."""
        return self._finished / max(time.monotonic() - self._began, 0.001)

    def seconds_left(self) -> float:
        """Return how long the tasks that are waiting will take at this rate; 0 while the rate is not known."""
        if not self._finished or time.monotonic() - self._began < MEASURED_SECONDS:
            return 0.0
        return self.tasks.left / self.rate()
