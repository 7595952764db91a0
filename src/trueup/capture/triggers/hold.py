"""A hold: the locks of some partitions of a tube, taken by one session, with a generation number per partition.

A lock ends with its session, but a process whose session was killed does not know that yet. Each process that takes the
lock therefore gets the next generation, and every task, write and delete checks that its generation is still current. A
write that was running when the session was lost cannot be stopped: the next worker waits for it for a while, unless the
process is known to be dead or released the lock itself.

Executors of Spark write on, one chunk after the other, when the process of their driver is dead. Only a new generation
stops them: the next worker takes it first, and then waits for the writes that were running.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any, NamedTuple

from trueup.capture.triggers.batch import Batch
from trueup.capture.triggers.pods import delete, release_lock, store_passing, take_lock
from trueup.capture.triggers.session import Session, block
from trueup.db.storable import storable, storable_values
from trueup.errors import CheckFailed, NodeError
from trueup.store.owner import Owner, this_process, why_lost

# Seconds after which a write of a worker that lost its lock is taken to be finished.
GRACE = 20.0
_PAUSE = 0.2
_BEAT_SECONDS = 2.0
_RATE_SECONDS = 10.0


class HoldLost(NodeError):
    """Another worker holds the lock of the partition now."""


class _LastWorker(NamedTuple):
    """The last worker of a partition, and the seconds since its last heartbeat."""

    owner: dict[str, Any]
    has_ended: bool
    seconds: float
    seen_at: datetime


class _LastWrite(NamedTuple):
    """The worker whose last write is waited for, and when it has ended at the latest, if executors write it."""

    worker: str
    quiet_at: float | None


class Hold:
    """The locks of some partitions of a tube."""

    def __init__(
        self,
        session: Session,
        tube: str,
        partitions: Sequence[int],
        *,
        executors: bool = False,
        grace: float | None = None,
    ) -> None:
        self.session = session
        self.tube = tube
        self.partitions = tuple(partitions)
        self.generations: dict[int, int] = {}
        self.waiting = ""
        # Whether other processes than this one write to the sink: executors of Spark.
        self.executors = executors
        # What runs the tasks and how fast it is, for the statistics.
        self.engine: dict[str, Any] = {}
        self._noted_engine: dict[str, Any] = {}
        self._grace = GRACE if grace is None else grace
        self._job = uuid.uuid4().hex
        self._beat_at = 0.0
        self._done: list[tuple[float, int, int]] = []

    def take(self, *, wait: float, say: Callable[[str], None], is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Take all locks, and wait for the last write of a worker that lost its lock.

        Raise CheckFailed, which names the holder, if another worker has one of the locks, or if it is stopped.
        """
        self.generations.clear()
        locked: list[int] = []
        try:
            for partition in self.partitions:
                self._lock(partition, wait, is_stopped)
                locked.append(partition)
            # The time for the last writes passes for all partitions at once.
            last_writes = [self._last_write(partition) for partition in self.partitions]
            for partition, last_write in zip(self.partitions, last_writes, strict=True):
                self._wait_for_last_write(partition, last_write, say, is_stopped)
                self.generations[partition] = self._begin(partition, executors=self.executors)
        except CheckFailed:
            for partition in locked:
                if partition not in self.generations:
                    release_lock(self.session, self.tube, partition)
            raise
        self._beat_at = time.monotonic()

    def _begin(self, partition: int, *, executors: bool) -> int:
        """Take the next generation of a partition, and register this process as its worker."""
        owner = {**asdict(this_process()), "job": self._job, "executors": executors}
        self._noted_engine = {}
        return int(self.session.call("tube_work_begin", self.tube, partition, json.dumps(owner)))

    def _lock(self, partition: int, wait: float, is_stopped: Callable[[], bool]) -> None:
        """Wait at most one second at a time, so that a waiting job can be stopped."""
        give_up = time.monotonic() + wait
        while True:
            left = give_up - time.monotonic()
            try:
                return take_lock(self.session, self.tube, partition, wait=max(0.0, min(1.0, left)))
            except CheckFailed:
                if left <= 1.0 or is_stopped():
                    raise

    def begin_executors(self) -> None:
        """Let executors write from now on: take the next generation, registered with them. Nothing may be written."""
        self.check()
        self.executors = True
        for partition in self.partitions:
            self.generations[partition] = self._begin(partition, executors=True)

    def lose_executors(self) -> None:
        """Let the next `take` wait for the last writes of the executors, as for those of another job."""
        self.executors = False
        self._job = uuid.uuid4().hex

    def check(self) -> None:
        """Raise HoldLost if another worker has taken one of the locks."""
        for partition, generation in self.generations.items():
            check_generation(self.session, self.tube, partition, generation)

    def beat(self) -> None:
        """Record a heartbeat if the last one is some seconds old."""
        if time.monotonic() - self._beat_at >= _BEAT_SECONDS:
            self._beat_at = time.monotonic()
            for partition in self.partitions:
                self._note(partition)
            if self.engine != self._noted_engine:
                self._noted_engine = self.engine
                for partition in self.partitions:
                    self._note_engine(partition)

    def acknowledge(self, batch: Batch, *, also: Callable[[], object] = lambda: None) -> int:
        """Delete the pods of a batch in one transaction with the writes of `also`; return how many were deleted."""
        deleted = 0
        with self.session.errors(), self.session.connection.transaction():
            for partition, numbers in batch.numbers.items():
                touches = batch.touches.get(partition, 0)
                self._done.append((time.monotonic(), partition, touches))
                self._note(partition, pods=len(numbers), keys=touches)
            also()
            numbers = [seq for partition_numbers in batch.numbers.values() for seq in partition_numbers]
            if numbers:
                deleted = delete(self.session, self.tube, numbers)
            else:
                # Dead letters that were delivered again.
                store_passing(self.session, batch.keys)
        return deleted

    def acknowledge_control(self, partition: int, seq: int, *, trouble: bool = False) -> None:
        """Delete a control pod whose work is done."""
        with self.session.errors(), self.session.connection.transaction():
            self._note(partition, pods=1, troubles=int(trouble))
            delete(self.session, self.tube, [seq])

    def release(self) -> None:
        """Release the locks, so that the next worker does not have to wait."""
        for partition in self.generations:
            self._note(partition, ends=True)
            release_lock(self.session, self.tube, partition)
        self.generations.clear()

    def rate(self, partition: int | None = None) -> float:
        """Return the keys per second of the last seconds, of one partition or of all."""
        now = time.monotonic()
        self._done = [entry for entry in self._done if now - entry[0] <= _RATE_SECONDS]
        return sum(keys for _, done, keys in self._done if partition in (None, done)) / _RATE_SECONDS

    def _note(self, partition: int, **facts: int) -> None:
        is_current = self.session.call(
            "tube_work_note",
            self.tube,
            partition,
            self.generations[partition],
            keys_per_second=self.rate(partition),
            waiting=storable(self.session.connection, self.waiting) or None,
            **facts,
        )
        if not is_current:
            raise _lost(self.session, self.tube, partition)

    def _note_engine(self, partition: int) -> None:
        values = {"tube": self.tube, "partition": partition, "generation": self.generations[partition]}
        engine = storable_values(self.session.connection, self.engine)
        self.session.rows(block(self.session, "engine"), {**values, "engine": json.dumps(engine)})

    def _last_write(self, partition: int) -> _LastWrite | None:
        """Return what to wait for: the last write of the previous worker, if it did not release the lock."""
        last = self._last_worker(partition)
        if last is None or last.has_ended or last.owner.get("job") == self._job:
            return None
        worker = f"process {last.owner.get('pid')} on {last.owner.get('host')}"
        if not last.owner.get("executors"):
            return _LastWrite(worker, None)
        # Registered with executors, so that the next worker waits too if this one is killed now.
        self._begin(partition, executors=True)
        return _LastWrite(worker, time.monotonic() + self._grace)

    def _wait_for_last_write(
        self, partition: int, last: _LastWrite | None, say: Callable[[str], None], is_stopped: Callable[[], bool]
    ) -> None:
        """Wait until the previous worker cannot write any more."""
        is_reported = False
        while last is not None and not self._is_quiet(partition, last.quiet_at):
            if not is_reported:
                say(f"{last.worker} lost partition {partition} of {self.tube}: waiting until it writes no more")
                is_reported = True
            if is_stopped():
                raise CheckFailed([f"stopped while waiting for the last write of {last.worker}"], cure="run it again")
            time.sleep(_PAUSE)

    def _is_quiet(self, partition: int, quiet_at: float | None) -> bool:
        """Whether the last write of the previous worker has ended; known by time alone if executors wrote."""
        if quiet_at is not None:
            return time.monotonic() >= quiet_at
        last = self._last_worker(partition)
        return last is None or last.has_ended or last.seconds > self._grace or not _may_write(last)

    def _last_worker(self, partition: int) -> _LastWorker | None:
        rows = self.session.rows(block(self.session, "last_worker"), {"tube": self.tube, "partition": partition})
        return _LastWorker(*rows[0]) if rows else None


def check_generation(session: Session, tube: str, partition: int, generation: int) -> None:
    """Raise HoldLost if this is not the current generation of a partition. For tasks with sessions of their own."""
    rows = session.rows(block(session, "generation"), {"tube": tube, "partition": partition})
    if not rows or rows[0][0] != generation:
        raise _lost(session, tube, partition)


def _may_write(last: _LastWorker) -> bool:
    """Whether a write of the previous worker may still be running: not if its process is dead."""
    try:
        owner = Owner(**{field.name: last.owner[field.name] for field in fields(Owner)})
        return why_lost(owner, last.seen_at) is None
    except KeyError:  # written by another version
        return True


def _lost(session: Session, tube: str, partition: int) -> HoldLost:
    return HoldLost(
        f"another worker has taken partition {partition} of the tube {tube}",
        cure="run one worker per partition: stop this one or the other one",
        node=session.node.name,
    )
