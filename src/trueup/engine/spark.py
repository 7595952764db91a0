"""The engine for bulk work: waves of Spark jobs through the DataFrame API, the same on every kind of cluster.

A wave is one Spark job over a bounded number of tasks. They are dealt to a few slices a slot; a slice works through
its tasks in a Python worker and sends results home as it goes.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from trueup.engine.work import Room, Tasks, Work, perform, without_marks
from trueup.errors import EngineError

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

SLICES_A_SLOT = 3
WAVE_SECONDS = 4.0
_LARGEST_WAVE = 4096
_BATCH_BYTES = 512 * 1024


class SparkEngine:
    """Runs tasks as Spark jobs on a session; the session is stopped only if it was started here."""

    name = "spark"

    def __init__(self, session: Any, slots: int, *, owned: bool) -> None:
        self.session = session
        self.slots = slots
        self._owned = owned

    def run(self, work: Work[T], tasks: Tasks[T]) -> Iterator[Any]:
        """Wave after wave until the queue is empty; a wave aims at a few seconds, whatever one task takes."""
        size = self.slots * SLICES_A_SLOT
        while wave := tasks.take(size):
            started = time.monotonic()
            yield from without_marks(self._wave(work, wave), len(wave))
            seconds = max(time.monotonic() - started, 0.001)
            if len(wave) == size:
                size = min(_LARGEST_WAVE, max(self.slots * SLICES_A_SLOT, int(size * min(WAVE_SECONDS / seconds, 2))))

    def _wave(self, work: Work[T], wave: Sequence[T]) -> Iterator[Any]:
        slices = min(len(wave), self.slots * SLICES_A_SLOT)
        deal = _Slice(work, [wave[at::slices] for at in range(slices)])
        try:
            frame = self.session.range(0, slices, 1, slices).mapInArrow(deal, "result binary")
            results = frame.toArrow()
        except KeyboardInterrupt:
            # In a session that is not ours the job would go on.
            with suppress(Exception):
                self.session.interruptAll()
            raise
        except Exception as error:
            raise EngineError(
                f"the Spark job failed: {type(error).__name__}: {str(error).splitlines()[0]}",
                cure="look at the executors' logs, or try --engine local",
            ) from error
        for batch in results.column(0).chunks:
            for result in batch:
                yield pickle.loads(result.as_py())

    def close(self) -> None:
        """Stop the session if it is ours."""
        if self._owned:
            self.session.stop()


class _Slice:
    """What a Python worker runs: the tasks of its slice, results as Arrow batches of pickled objects."""

    def __init__(self, work: Work[Any], deals: Sequence[Sequence[Any]]) -> None:
        self.work = work
        self.deals = deals

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _settle()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._results(self.deals[number])

    def _results(self, tasks: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        room = Room()
        waiting: list[bytes] = []
        size = 0
        for task in tasks:
            for result in perform(self.work, task, room):
                data = pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
                waiting.append(data)
                size += len(data)
                if size > _BATCH_BYTES:
                    yield _batch(waiting)
                    waiting, size = [], 0
        if waiting:
            yield _batch(waiting)


def _batch(results: list[bytes]) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.array(results, pa.binary())], ["result"])


_settled = False


def _settle() -> None:
    """Once a worker: Spark collects all garbage after every slice, which is slow with a large import behind us."""
    global _settled
    if not _settled:
        import gc

        gc.freeze()
        _settled = True
