"""Starts and finishes the read of a batch; a batch with a table that is set aside is claimed again without it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from trueup.capture.triggers.batch import Batch
from trueup.capture.triggers.queue import Queue
from trueup.capture.triggers.shape import Shapes
from trueup.errors import QueryError
from trueup.verbs.tube.aside import Aside
from trueup.verbs.tube.letters import Letters
from trueup.verbs.tube.model import Job, SetAside
from trueup.verbs.tube.pipeline import EnrichedBatch, Outcome, Pipeline
from trueup.verbs.tube.waiting import Waiting

# The columns of a table may change between the look at the catalog and the read: then the next attempt succeeds.
_ATTEMPTS = 3


class Reading:
    """Reads the rows of batches, and knows which tables cannot be read."""

    def __init__(self, job: Job, pipeline: Pipeline, shapes: Shapes, queue: Queue, letters: Letters) -> None:
        self._job = job
        self._pipeline = pipeline
        self._shapes = shapes
        self._queue = queue
        self._letters = letters
        self.aside = Aside(job, shapes)
        self.waiting = Waiting(job, letters, self.aside)

    def beat(self) -> None:
        """Send a heartbeat; then leave the pods and the dead letters of tables with problems alone."""
        self.waiting.beat()
        self._queue.aside = self.aside.sources
        self._letters.set_aside(self.aside.sources)

    def start(self, batch: Batch) -> Future[EnrichedBatch] | None:
        """Start to read the rows of a batch; None if one of its tables has to be set aside first."""
        shapes = batch.without_superseded(self._shapes.get(batch.keys))
        lost = [shape for source, shape in shapes.items() if source in batch.keys and shape.relation is None]
        if any(shape.problem or not shape.is_detached for shape in lost):
            self.aside.check()
            self._queue.release(batch)
            return None
        for shape in lost:
            keys = len(batch.keys.pop(shape.source))
            self._job.say(f"{shape.table} was detached and does not exist any more: skipped {keys:,} touched keys")
            self._job.summary.troubles += 1
        return self._pipeline.enrich(batch, shapes)

    def finish(self, batch: Batch, reading: Future[EnrichedBatch] | None) -> EnrichedBatch:
        """Return a batch with its rows; while they cannot be read, read the catalog and the rows again.

        Raise SetAside if one of its tables is set aside.
        """
        if reading is None:
            raise SetAside
        started, attempts = [reading], [0]

        def attempt() -> EnrichedBatch:
            attempts[0] += 1
            if not started:
                self._shapes.forget()
                started.append(self._pipeline.enrich(batch, self._shapes.get(batch.keys)))
            return self.waiting.result(started.pop())

        def check(error: QueryError) -> None:
            self._raise_if_aside(error, batch, must_name=attempts[0] >= _ATTEMPTS)

        return self.waiting.while_locked(attempt, check=check)

    def check(self, batch: Batch) -> None:
        """Raise SetAside if a table of a batch was set aside since the batch was read."""
        if set(batch.keys) & set(self.aside.sources):
            self._queue.release(batch)
            raise SetAside

    def again(self, batch: Batch) -> EnrichedBatch:
        """Read the rows of a batch; raise SetAside if one of its tables is set aside."""
        return self.finish(batch, self.start(batch))

    def checked(self, batch: Batch, write: Callable[[], Outcome]) -> Outcome:
        """Return the outcome of a write; tasks of Spark read rows too, so it may fail like a read."""
        try:
            return write()
        except QueryError as error:
            self._raise_if_aside(error, batch, must_name=True)
            raise

    def _raise_if_aside(self, error: QueryError, batch: Batch, *, must_name: bool) -> None:
        if error.sqlstate[:2] == "42" and self.aside.explains(error, batch.keys, must_name=must_name):
            self._queue.release(batch)
            raise SetAside from None
