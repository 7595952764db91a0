"""The engine for bulk work: waves of Spark jobs through the DataFrame API, the same on every kind of cluster.

A wave is one Spark job over a bounded number of tasks. They are dealt to a few slices a slot; a slice works through
its tasks in a Python worker and sends results home as it goes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from trueup.engine.envelope import Slice, failed_job, opened
from trueup.engine.slots import Cores, Share
from trueup.engine.work import Tasks, Work, without_marks

T = TypeVar("T")

SLICES_A_SLOT = 3
WAVE_SECONDS = 4.0
_LARGEST_WAVE = 4096


class SparkEngine:
    """Runs tasks as Spark jobs on a session; the session is stopped only if it was started here."""

    name = "spark"

    def __init__(self, session: Any, share: Share, *, owned: bool, lasting: bool = False) -> None:
        self.session = session
        # As far as the slots may grow with the cluster; 0 is no limit.
        self.most = 0
        self._owned = owned
        # Workers that live on after the run would keep sessions, and in them locks and snapshots.
        self._lasting = lasting or not owned
        self._share = share
        self._cores = Cores(session)
        # Runs that share the engine take turns: there are never more slices at once than slots.
        self._turn = threading.Lock()
        self._count()

    def run(self, work: Work[T], tasks: Tasks[T]) -> Iterator[Any]:
        """Wave after wave until the queue is empty; a wave aims at a few seconds, whatever one task takes."""
        size = self.slots * SLICES_A_SLOT
        while wave := tasks.take(size):
            started = time.monotonic()
            yield from without_marks(self._wave(work, wave), len(wave))
            seconds = max(time.monotonic() - started, 0.001)
            self._count()
            if len(wave) == size:
                size = min(_LARGEST_WAVE, max(self.slots * SLICES_A_SLOT, int(size * min(WAVE_SECONDS / seconds, 2))))

    def _count(self) -> None:
        """How many slots there are now; executors may have come or gone."""
        cores = self._cores.now()
        slots = self._share.of(cores)
        self.slots = min(slots, self.most) if self.most else slots
        # Spark starts a slice on every core that is free. Where not all are for us, or a node has room for so many
        # connections only, there are no more slices than slots, and none leaves a session behind in its worker.
        self._limited = self.slots < cores or self._share.max_connections > 0

    def _wave(self, work: Work[T], wave: Sequence[T]) -> Iterator[Any]:
        slices = min(len(wave), self.slots * (1 if self._limited else SLICES_A_SLOT))
        deal = Slice.of(work, [wave[at::slices] for at in range(slices)], keep=not (self._limited or self._lasting))
        try:
            with self._turn:
                frame = self.session.range(0, slices, 1, slices).mapInArrow(deal, "result binary")
                results = frame.toArrow()
        except KeyboardInterrupt:
            # In a session that is not ours the job would go on.
            self.interrupt()
            raise
        except Exception as error:
            raise failed_job(error) from error
        for batch in results.column(0).chunks:
            for result in batch:
                yield opened(result.as_py())

    def interrupt(self) -> None:
        """End the jobs that are under way."""
        with suppress(Exception):
            self.session.interruptAll()

    def close(self) -> None:
        """Stop the session if it is ours."""
        if self._owned:
            self.session.stop()
