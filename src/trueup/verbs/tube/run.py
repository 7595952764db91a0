"""`trueup tube run`: claim, enrich, write, acknowledge; what control pods ask for; and what to wait for.

The path of a batch: pods are claimed, live ones first (`_claim`); the rows of their keys are read (`prepare`) while the
batch before is written; it is written (`write`); its pods are deleted by their numbers (`_acknowledge`). Killed at any
point, the pods are still there, and the same keys are read and written again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TypeVar

from trueup.capture.triggers import pods
from trueup.capture.triggers.batch import Batch, batch_of
from trueup.capture.triggers.enrich import PASSING, Refused
from trueup.capture.triggers.hold import Hold
from trueup.capture.triggers.model import Pod
from trueup.capture.triggers.scheduled import Scheduled
from trueup.capture.triggers.session import Session, block
from trueup.capture.triggers.shape import Shape, Shapes
from trueup.engine.progress import Progress
from trueup.errors import CheckFailed, QueryError
from trueup.sinks.base import Mark, Sink, SinkDown
from trueup.verbs.tube.deliver import RefusesAll
from trueup.verbs.tube.garbage import Garbage
from trueup.verbs.tube.lanes import Lanes, Outcome, Prepared
from trueup.verbs.tube.letters import Letters, key_of
from trueup.verbs.tube.pace import Pace, Pause

T = TypeVar("T")

IDLE_SECONDS = 0.05
_LOOK_SECONDS = 1.0
_SAY_SECONDS = 30.0
_COVER_SECONDS = 60.0


@dataclass
class Summary:
    """What a job has done."""

    tube: str
    pods: int = 0
    keys: int = 0
    written: int = 0
    removed: int = 0
    batches: int = 0
    # Documents that a garbage collection had looked at again are among the keys.
    refused: int = 0
    parked: int = 0
    troubles: int = 0
    outages: int = 0
    # Dead letters of its partitions when it ended, of whatever job.
    dead_letters: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Limits:
    """How much at once, how patient."""

    most_pods: int = 2_000
    most_keys: int = 0
    letter_attempts: int = 5
    letter_pause: float = 1.0
    until_empty: bool = False


class Job:
    """One job on some partitions of a tube, for as long as it holds their locks."""

    def __init__(
        self,
        session: Session,
        hold: Hold,
        sink: Sink,
        lanes: Lanes,
        limits: Limits,
        summary: Summary,
        progress: Progress,
        stop: threading.Event,
        beat: Callable[[Summary, str], None],
    ) -> None:
        self.session, self.hold, self.sink, self.lanes = session, hold, sink, lanes
        self.limits, self.summary, self.progress, self.stop, self._beat_store = limits, summary, progress, stop, beat
        self.tube = hold.tube
        self.partitions = pods.partitions_of(session, self.tube)
        self.shapes = Shapes(session, self.tube)
        self.garbage = Garbage(hold, self.partitions)
        self.scheduled = Scheduled(session.node, session.schema, self.tube)
        self.letters = Letters(
            session,
            self.tube,
            self.partitions,
            hold.partitions,
            attempts=limits.letter_attempts,
            pause=limits.letter_pause,
        )
        self.pace = Pace(limits.most_keys or lanes.keys_at_once, lanes.seconds_at_once)
        self._flight: list[Batch] = []
        self._last_seq = 0
        self._is_set_up = False
        self._looked_at = self._said_at = self._covered_at = time.monotonic()

    def run(self) -> None:
        """Until it is stopped, or the tube is empty if that was asked for."""
        self._setup()
        writing: tuple[Prepared, Future[Outcome]] | None = None
        while True:
            self._look()
            batch = None if self.stop.is_set() else self._claim()
            coming = self._prepare(batch) if batch is not None else None
            if writing is not None:
                self._acknowledge(*writing)
                writing = None
            if not self.stop.is_set():
                self._between()
            if coming is not None:
                prepared = self._prepared(*coming)
                writing = prepared, self._write(prepared)
            elif self.stop.is_set() or self._is_done():
                return
            elif not self.garbage:
                self.stop.wait(IDLE_SECONDS)

    def close(self) -> None:
        """Stop what runs beside."""
        self.scheduled.close()

    # Before the first batch, and between two.

    def _setup(self) -> None:
        """Tell the sink of the tables; nothing may be written meanwhile."""
        self._shapes_of(self.shapes.attached())
        self._patiently(lambda: self.lanes.setup(self.shapes.all()))
        self._is_set_up = True

    def _shapes_of(self, sources: Collection[int]) -> dict[int, Shape]:
        """The shapes as they are now; the sink is told of changes before the next write."""
        found, changed = self.shapes.get(sources)
        self._is_set_up = self._is_set_up and not changed
        return found

    def _look(self) -> None:
        """Signs of life, and what changes slowly."""
        self.hold.beat()
        now = time.monotonic()
        if now - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = now
        self._beat_store(self.summary, self.hold.waiting)
        self.letters.look()
        if now - self._covered_at >= _COVER_SECONDS:
            self._covered_at = now
            self._cover()
        if now - self._said_at >= _SAY_SECONDS:
            self._said_at = now
            if rate := self.hold.rate():
                self.progress.say(f"{self.tube}: {rate:,.0f} keys/s, {self.summary.keys:,} keys so far")

    def _cover(self) -> None:
        """Partitions of partitioned tables that are new get their triggers; if not now, then the next time."""
        try:
            self.session.call("tube_partitions_ensure_attached", self.tube, "1 s")
        except QueryError as error:
            self.progress.say(f"{self.tube}: new partitions of its tables are not covered yet: {error}")

    def _between(self) -> None:
        """While nothing is written: dead letters that are due, a page of garbage, backfills that were asked for."""
        for source, shard, text, op in self.letters.due():
            self._retry(source, shard, text, op)
        if self.garbage:
            shapes = self._shapes_of(self.garbage.sources)
            if said := self._patiently(lambda: self.garbage.step(self.sink, shapes)):
                self.progress.say(f"{self.tube}: {said}")
        ended, error = self.scheduled.step()
        if ended is not None:
            self.hold.acknowledge_control(ended[0], ended[1].seq)
            self.progress.say(f"{self.tube}: the backfill of {(ended[1].payload or {})['table']} is in the tube")
        if error is not None:
            self.progress.say(f"{self.tube}: a backfill that was asked for did not go well: {error}")
            if isinstance(error, CheckFailed) or (isinstance(error, QueryError) and error.sqlstate[:2] == "42"):
                # Its table or column is not there (any more): trying again would not help.
                partition, pod = self.scheduled.give_up()
                self.hold.acknowledge_control(partition, pod.seq, trouble=True)
                self.summary.troubles += 1

    # The path of a batch.

    def _claim(self) -> Batch | None:
        """The next pods of all partitions, a share of each, so that live touches wait for no other's backfill."""
        skip = [seq for batch in self._flight for seq in batch.pods] + self.garbage.pods + self.scheduled.pods
        share = max(1, self.pace.keys // len(self.hold.partitions))
        claimed: list[tuple[int, Pod]] = []
        for partition in self.hold.partitions:
            found = pods.claim(
                self.session, self.tube, partition, most=self.limits.most_pods, skip=skip, most_keys=share
            )
            claimed += [(partition, pod) for pod in found]
        if not claimed:
            return None
        self._last_seq = max(self._last_seq, *(pod.seq for _, pod in claimed))
        shapes = self._shapes_of({pod.source for _, pod in claimed})
        batch = batch_of(claimed, {source for source, shape in shapes.items() if len(shape.key) > 1})
        self._flight.append(batch)
        return batch

    def _prepare(self, batch: Batch) -> tuple[Batch, Mapping[int, Shape], Future[Prepared]]:
        shapes = self._shapes_of(batch.keys)
        for source in [each for each in batch.keys if shapes[each].relation is None]:
            self.progress.say(
                f"{self.tube}: the table with the number {shapes[source].table} or its key is gone:"
                f" {len(batch.keys.pop(source)):,} touched keys of it have no rows and no documents"
            )
            self.summary.troubles += 1
        return batch, shapes, self.lanes.prepare(batch, shapes)

    def _prepared(self, batch: Batch, shapes: Mapping[int, Shape], future: Future[Prepared]) -> Prepared:
        """A batch whose rows are read; as long as a table is locked or the server short of something, it waits."""
        pause = Pause()
        while True:
            try:
                prepared = self._wait(future)
                self._goes_on()
                return prepared
            except QueryError as error:
                if error.sqlstate[:2] not in PASSING:
                    raise
                self._waits(f"rows cannot be read now: {error}", pause)
                if self.stop.is_set():
                    raise Stopped from None
                self.shapes.forget()
                shapes = self._shapes_of(batch.keys)
                future = self.lanes.prepare(batch, shapes)

    def _write(self, prepared: Prepared) -> Future[Outcome]:
        """Begin to write a batch, if the locks are still ours; no other is being written."""
        if not self._is_set_up:
            self._setup()
        self.hold.check()
        return self.lanes.write(prepared)

    def _acknowledge(self, prepared: Prepared, future: Future[Outcome]) -> None:
        """Wait until a batch is written, then delete its pods and note what was refused, in one transaction."""
        pause, batch = Pause(), prepared.batch
        while True:
            try:
                outcome = self._wait(future)
                break
            except SinkDown as error:
                self.summary.outages += not pause.times
                prepared.refusals += isinstance(error, RefusesAll)
                self._waits(f"the sink is down: {error}", pause)
                if self.stop.is_set():
                    raise Stopped from None
                future = self._write(prepared)
        self._goes_on()
        parked: list[int] = []
        self.summary.pods += self.hold.acknowledge(
            batch, also=lambda: parked.append(self.letters.settle(batch, outcome.refused))
        )
        self._flight.remove(batch)
        self.pace.learn(batch.size, time.monotonic() - prepared.began)
        self._count(batch, outcome, parked[0])
        for partition, pod in batch.controls:
            self._heed(partition, pod)

    def _count(self, batch: Batch, outcome: Outcome, parked: int) -> None:
        self.summary.batches += 1
        self.summary.keys += batch.size
        self.summary.written += outcome.written
        self.summary.removed += outcome.removed
        self.summary.refused += len(outcome.refused)
        self.summary.parked += parked
        for each in outcome.refused[:3]:
            self.progress.say(f"{self.tube}: key {each.key} of shard {each.shard} was refused: {each.error}")
        if parked:
            self.progress.say(f"{self.tube}: {parked:,} keys are parked; see trueup tube dead-letters {self.tube}")

    def _heed(self, partition: int, pod: Pod) -> None:
        """A control pod, after the batch that it came with is written."""
        payload = pod.payload or {}
        if pod.op in ("}", "X"):
            self.garbage.add(partition, pod)
        elif pod.op == "{":
            self.progress.say(f"{self.tube}: a backfill of {payload.get('table')} begins ({payload.get('reason')})")
            self.scheduled.add(partition, pod)
        else:
            lost = "touches are LOST, run a backfill" if payload.get("lost") else "nothing is lost"
            self.progress.say(f"{self.tube}: TROUBLE in {payload.get('table')}: {payload.get('error')} ({lost})")
            self.summary.troubles += 1
            self.hold.acknowledge_control(partition, pod.seq, trouble=True)

    def _retry(self, source: int, shard: int, text: str, op: str) -> None:
        """A dead letter alone, through the same steps. It is as new as the newest pod that was seen."""
        shapes = self._shapes_of([source])
        batch = Batch({}, Mark(self._last_seq, datetime.now(timezone.utc)))
        if source not in shapes or shapes[source].relation is None:
            gone = [Refused(source, shard, text, op, "its table is gone")]
            self.hold.acknowledge(batch, also=lambda: self.letters.settle(batch, gone))
            return
        batch.keys[source] = {(shard, key_of(shapes[source], text)): op}
        self._flight.append(batch)
        prepared = self._prepared(batch, shapes, self.lanes.prepare(batch, shapes))
        self._acknowledge(prepared, self._write(prepared))

    # Waiting.

    def _is_done(self) -> bool:
        """Whether the tube is empty and stays so, if that is when to end."""
        if not self.limits.until_empty or self.garbage or self.scheduled or self.letters.trying:
            return False
        running = self.session.rows(block(self.session, "running_backfills"), {"tube": self.tube})[0][0]
        # Asked in this order: what a backfill puts in last is there before it says that it has ended.
        return not running and not any(
            pods.claim(self.session, self.tube, partition, most=1, skip=()) for partition in self.hold.partitions
        )

    def _wait(self, future: Future[T]) -> T:
        """The result; meanwhile, signs of life."""
        while not wait([future], timeout=_LOOK_SECONDS).done:
            self._look()
        return future.result()

    def _patiently(self, call: Callable[[], T]) -> T:
        """Call the sink from here, again and again while it is down."""
        pause = Pause()
        while True:
            try:
                found = call()
                self._goes_on()
                return found
            except SinkDown as error:
                self.summary.outages += not pause.times
                self._waits(f"the sink is down: {error}", pause)
                if self.stop.is_set():
                    raise Stopped from None

    def _waits(self, reason: str, pause: Pause) -> None:
        if reason != self.hold.waiting:
            self.progress.wait(f"{self.tube}: {reason}")
        self.hold.waiting = reason
        ends_at = time.monotonic() + pause.next()
        while time.monotonic() < ends_at and not self.stop.is_set():
            self._look()
            self.stop.wait(min(_LOOK_SECONDS, max(0.0, ends_at - time.monotonic())))

    def _goes_on(self) -> None:
        if self.hold.waiting:
            self.hold.waiting = ""
            self.progress.wait("")
            self.progress.say(f"{self.tube}: going on")


class Stopped(Exception):
    """Asked to stop while the batch cannot be finished: its pods stay in the tube."""
