"""A hold: the locks of some partitions of a tube, taken by one session, with a generation number per partition.

A lock ends with its session, but a process whose session was killed does not know that yet. Each process that takes the
lock therefore gets the next generation, and every task, write and delete checks that its generation is still current. A
write that was running when the session was lost cannot be stopped: the next worker waits for it for a while, unless the
process is known to be dead or released the lock itself.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from trueup.capture.triggers.batch import Batch
from trueup.capture.triggers.pods import delete, release_lock, take_lock
from trueup.capture.triggers.session import Session, block
from trueup.db.storable import storable
from trueup.errors import CheckFailed, NodeError
from trueup.store.owner import Owner, this_process, why_lost

# Seconds after which a write of a worker that lost its lock is taken to be finished.
GRACE = 20.0
_PAUSE = 0.2
_BEAT_SECONDS = 2.0
_RATE_SECONDS = 10.0


class HoldLost(NodeError):
    """Another worker holds the lock of the partition now."""


class Hold:
    """The locks of some partitions of a tube."""

    def __init__(self, session: Session, tube: str, partitions: Sequence[int], *, grace: float = GRACE) -> None:
        self.session = session
        self.tube = tube
        self.partitions = tuple(partitions)
        self.generations: dict[int, int] = {}
        self.waiting = ""
        self._grace = grace
        self._job = uuid.uuid4().hex
        self._beat_at = 0.0
        self._done: list[tuple[float, int, int]] = []

    def take(self, *, wait: float, say: Callable[[str], None], is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Take all locks, and wait for the last write of a worker that lost its lock.

        Raise CheckFailed, which names the holder, if another worker has one of the locks.
        """
        self.generations.clear()
        owner = json.dumps({**asdict(this_process()), "job": self._job})
        for partition in self.partitions:
            self._lock(partition, wait, is_stopped)
            self._wait_for_last_write(partition, say, is_stopped)
            self.generations[partition] = int(self.session.call("tube_work_begin", self.tube, partition, owner))
        self._beat_at = time.monotonic()

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

    def _wait_for_last_write(self, partition: int, say: Callable[[str], None], is_stopped: Callable[[], bool]) -> None:
        """Wait until the previous worker, if it did not release the lock, cannot write any more."""
        query = block(self.session, "last_worker")
        is_reported = False
        while rows := self.session.rows(query, {"tube": self.tube, "partition": partition}):
            owner, has_ended, seconds, seen_at = rows[0]
            if has_ended or seconds > self._grace or not _may_write(owner, self._job, seen_at) or is_stopped():
                return
            if not is_reported:
                worker = f"process {owner.get('pid')} on {owner.get('host')}"
                say(f"{worker} lost partition {partition} of {self.tube}: waiting until it writes no more")
                is_reported = True
            time.sleep(_PAUSE)


def check_generation(session: Session, tube: str, partition: int, generation: int) -> None:
    """Raise HoldLost if this is not the current generation of a partition. For tasks with sessions of their own."""
    rows = session.rows(block(session, "generation"), {"tube": tube, "partition": partition})
    if not rows or rows[0][0] != generation:
        raise _lost(session, tube, partition)


def _may_write(owner: dict[str, Any], job: str, seen_at: datetime) -> bool:
    """Whether a write of the previous worker may still be running: not if it was this job or its process is dead."""
    if owner.pop("job", None) == job:
        return False
    try:
        return why_lost(Owner(**owner), seen_at) is None
    except TypeError:  # written by another version
        return True


def _lost(session: Session, tube: str, partition: int) -> HoldLost:
    return HoldLost(
        f"another worker has taken partition {partition} of the tube {tube}",
        cure="run one worker per partition: stop this one or the other one",
        node=session.node.name,
    )
