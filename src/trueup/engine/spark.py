"""The engine for large work: waves of Spark jobs through the DataFrame API, the same on every kind of cluster.

A wave is one Spark job over a bounded number of tasks, divided into a few slices per slot. A slice runs its tasks in a
Python worker and sends their answers to the driver.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from trueup.engine.envelope import Slice, opened
from trueup.engine.failures import failed_job
from trueup.engine.jvm import stop_session
from trueup.engine.slots import Cores, Share
from trueup.engine.work import Tasks, Work, without_marks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

SLICES_PER_SLOT = 3
WAVE_SECONDS = 4.0
_LARGEST_WAVE = 4096


class SparkEngine:
    """Runs tasks as Spark jobs of a session, which `close` stops if it is `owned`."""

    name = "spark"

    def __init__(self, session: SparkSession, share: Share, *, owned: bool, lasting: bool = False) -> None:
        self.session = session
        # Limit of the slots when the cluster grows; 0: no limit.
        self.max_slots = 0
        self._owned = owned
        # Workers that outlive the run must not keep sessions, which hold locks and snapshots.
        self._lasting = lasting or not owned
        self._share = share
        self._cores = Cores(session)
        # Runs that share the engine take turns, so that there are never more slices than slots.
        self._job_lock = threading.Lock()
        self._count()

    def run(self, work: Work[T], tasks: Tasks[T]) -> Iterator[Any]:
        """Run waves until the queue is empty; the size of a wave is adjusted so that it takes a few seconds."""
        size = self.slots * SLICES_PER_SLOT
        while wave := tasks.take(size):
            started = time.monotonic()
            yield from without_marks(self._wave(work, wave), len(wave))
            seconds = max(time.monotonic() - started, 0.001)
            self._count()
            if len(wave) == size:
                size = min(_LARGEST_WAVE, max(self.slots * SLICES_PER_SLOT, int(size * min(WAVE_SECONDS / seconds, 2))))

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
        packed = Slice.of(
            work, [wave[number::slices] for number in range(slices)], keep=not (self._limited or self._lasting)
        )
        try:
            with self._job_lock:
                frame = self.session.range(0, slices, 1, slices).mapInArrow(packed, "result binary")
                results = frame.toArrow()
        except KeyboardInterrupt:
            # In a session that is not stopped the job would continue.
            self.interrupt()
            raise
        except Exception as error:
            raise failed_job(error) from error
        for batch in results.column(0).chunks:
            for result in batch:
                yield opened(result.as_py())

    def interrupt(self) -> None:
        """End the running jobs."""
        with suppress(Exception):
            self.session.interruptAll()

    def close(self) -> None:
        """Stop the session if it is owned."""
        if self._owned:
            stop_session(self.session)
