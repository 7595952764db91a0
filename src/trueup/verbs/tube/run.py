"""The loop of `trueup tube run`: claim, enrich, write, acknowledge, and the control pods between two batches.

The rows of the next batch are read while the current one is written. A job killed at any point leaves the pods in the
tube: the same keys are read and written again.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from contextlib import suppress

from trueup.capture.triggers import pods
from trueup.capture.triggers.queue import Queue
from trueup.capture.triggers.shape import Shapes
from trueup.verbs.tube.control import Control
from trueup.verbs.tube.deliver import RefusesAll
from trueup.verbs.tube.letters import Letters
from trueup.verbs.tube.model import Job, SetAside
from trueup.verbs.tube.pace import Pace
from trueup.verbs.tube.pipeline import EnrichedBatch, Outcome, Pipeline, set_up
from trueup.verbs.tube.reading import Reading

_IDLE_SECONDS = 0.05


class Run:
    """One job for as long as it holds the locks of its partitions."""

    def __init__(self, job: Job, pipeline: Pipeline) -> None:
        self.job, self.pipeline = job, pipeline
        self.shapes = Shapes(job.session, job.tube)
        self.queue = Queue(job.hold, self.shapes, max_pods=job.options.max_pods)
        self.letters = Letters(job, pods.partitions_of(job.session, job.tube))
        self.reading = Reading(job, pipeline, self.shapes, self.queue, self.letters)
        self.waiting, self.aside = self.reading.waiting, self.reading.aside
        self.control = Control(job, self.waiting)
        self.pace = Pace(pipeline, job.options.max_keys)

    def run(self) -> None:
        """Deliver batches until the job is stopped, or until the tube is empty if that is requested."""
        stop = self.job.stop
        # What changed while no job ran: a table that was dropped, a partition whose rows must leave the sink.
        self.aside.check()
        self._setup()
        writing: tuple[EnrichedBatch, Future[Outcome]] | None = None
        while True:
            self.reading.beat()
            if writing is None and self.aside.needs_setup:
                self._setup()
            if writing is not None and not self.pipeline.reads_ahead:
                self._finish(*writing)
                writing = None
            batch = None if stop.is_set() else self.queue.next(self.pace.keys, skip=self.control.pods)
            reading = self.reading.start(batch) if batch is not None else None
            if writing is not None:
                self._finish(*writing)
                writing = None
            if not stop.is_set():
                self._retry_letters()
                self.control.step(self.shapes, self.aside.sources)
            if batch is not None:
                with suppress(SetAside):
                    enriched = self.reading.finish(batch, reading)
                    writing = enriched, self._write(enriched)
            elif stop.is_set() or self._is_finished():
                return
            else:
                self.pipeline.check()
                stop.wait(0 if self.control.garbage else _IDLE_SECONDS)

    def _setup(self) -> None:
        """Announce the attached tables to the sink. Nothing may be written at the same time."""
        shapes = self.aside.without(self.shapes.all())
        self.aside.refuse(self.waiting.while_down(lambda: set_up(self.pipeline, shapes), uses=bool(shapes)))
        self.shapes.changed = False

    def _write(self, enriched: EnrichedBatch) -> Future[Outcome]:
        """Start to write a batch if the locks are still held. No other batch is being written."""
        is_taken_over = self.pipeline.take_over()
        if is_taken_over or self.shapes.changed:
            self._setup()
            self.reading.check(enriched.batch)
            is_superseded = any(shape.is_superseded for shape in self.shapes.get(enriched.batch.keys).values())
            if is_taken_over or is_superseded:
                enriched.renew(self.reading.again(enriched.batch))
        self.job.hold.check()
        return self.pipeline.write(enriched)

    def _finish(self, enriched: EnrichedBatch, writing: Future[Outcome]) -> None:
        """Acknowledge a batch; one with a table that is set aside meanwhile is claimed again."""
        with suppress(SetAside):
            self._acknowledge(enriched, writing)

    def _acknowledge(self, enriched: EnrichedBatch, writing: Future[Outcome]) -> None:
        """Wait until a batch is written; then delete its pods and record what was refused, in one transaction."""
        started, batch = [writing], enriched.batch

        def attempt() -> Outcome:
            return self.waiting.result(started.pop() if started else self._write(enriched))

        def refused(error: Exception) -> None:
            enriched.refusals += isinstance(error, RefusesAll)

        outcome = self.reading.checked(batch, lambda: self.waiting.while_down(attempt, refused=refused))
        parked: list[int] = []
        self.job.summary.pods += self.queue.acknowledge(
            batch, also=lambda: parked.append(self.letters.settle(batch, outcome.refused))
        )
        self.pace.learn(batch.size, time.monotonic() - enriched.started_at)
        outcome.report(self.job, batch, parked[0], self.pipeline.engine)
        for partition, pod in batch.controls:
            self.control.receive(partition, pod)

    def _retry_letters(self) -> None:
        """Deliver each dead letter that is due, in a batch of its own."""
        for batch in self.letters.due(self.shapes, self.queue.newest_mark()):
            with suppress(SetAside):
                enriched = self.reading.again(batch)
                self._acknowledge(enriched, self._write(enriched))

    def _is_finished(self) -> bool:
        if not self.job.options.until_empty or self.control.is_busy or self.letters.retrying:
            return False
        # The last check may set a table aside, let one go on, or schedule a backfill.
        return self.queue.is_drained() and not self.aside.check() and self.queue.is_drained()
