"""Whoever works on partitions of a tube holds their locks, in one session, and a generation that ends with them.

The lock ends with the session, but a process whose session was killed does not know it yet. So each that takes the
lock gets the next generation, and every task, write and delete looks whether it is still its own. A write that was
under way when the session was lost cannot be called back: who takes over waits a while for it, unless it is known
that the process is dead, or it gave the lock back in order.
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
from trueup.errors import CheckFailed, NodeError
from trueup.store.owner import Owner, this_process, why_lost

# A write that is under way without a lock is taken to end within this.
GRACE = 20.0
_PAUSE = 0.2
_BEAT_SECONDS = 2.0
_RATE_SECONDS = 10.0


class HoldLost(NodeError):
    """The lock of a partition is somebody else's by now."""


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
        """Take all locks, or raise an error that names who has one; waits for writes of one that lost its lock."""
        self.generations.clear()
        for partition in self.partitions:
            self._lock(partition, wait, is_stopped)
            self._wait_for_last(partition, say, is_stopped)
            owner = self.session.call("tube_work_begin", self.tube, partition, _json(self._owner()))
            self.generations[partition] = int(owner)
        self._beat_at = time.monotonic()

    def _lock(self, partition: int, wait: float, is_stopped: Callable[[], bool]) -> None:
        """Wait a second at a time, so that a job that waits can be stopped."""
        give_up = time.monotonic() + wait
        while True:
            left = give_up - time.monotonic()
            try:
                return take_lock(self.session, self.tube, partition, wait=max(0.0, min(1.0, left)))
            except CheckFailed:
                if left <= 1.0 or is_stopped():
                    raise

    def check(self) -> None:
        """Raise HoldLost if one of the locks has been taken by somebody else."""
        for partition, generation in self.generations.items():
            check_generation(self.session, self.tube, partition, generation)

    def beat(self) -> None:
        """A sign of life, now and then."""
        if time.monotonic() - self._beat_at >= _BEAT_SECONDS:
            self._beat_at = time.monotonic()
            for partition in self.partitions:
                self._note(partition)

    def acknowledge(self, batch: Batch, *, also: Callable[[], object] = lambda: None) -> int:
        """Delete exactly the pods of a batch, in one transaction with what `also` does; gives how many were there."""
        deleted = 0
        with self.session.errors(), self.session.connection.transaction():
            for partition, numbers in batch.numbers.items():
                touches = batch.touches.get(partition, 0)
                self._done.append((time.monotonic(), partition, touches))
                self._note(partition, pods=len(numbers), keys=touches)
            also()
            numbers = [seq for each in batch.numbers.values() for seq in each]
            if numbers:
                deleted = delete(self.session, self.tube, numbers)
        return deleted

    def acknowledge_control(self, partition: int, seq: int, *, trouble: bool = False) -> None:
        """Delete a control pod, whose message was heeded."""
        with self.session.errors(), self.session.connection.transaction():
            self._note(partition, pods=1, troubles=int(trouble))
            delete(self.session, self.tube, [seq])

    def release(self) -> None:
        """Give the locks back in order: whoever comes next need not wait."""
        for partition in self.generations:
            self._note(partition, ends=True)
            release_lock(self.session, self.tube, partition)
        self.generations.clear()

    def rate(self, partition: int | None = None) -> float:
        """Keys a second of the last seconds."""
        now = time.monotonic()
        self._done = [each for each in self._done if now - each[0] <= _RATE_SECONDS]
        found = [each for each in self._done if partition in (None, each[1])]
        return sum(each[2] for each in found) / _RATE_SECONDS

    def _note(self, partition: int, **what: Any) -> None:
        is_mine = self.session.call(
            "tube_work_note",
            self.tube,
            partition,
            self.generations[partition],
            keys_per_second=self.rate(partition),
            waiting=self.waiting or None,
            **what,
        )
        if not is_mine:
            raise _lost(self.session, self.tube, partition)

    def _owner(self) -> dict[str, Any]:
        return {**asdict(this_process()), "job": self._job}

    def _wait_for_last(self, partition: int, say: Callable[[str], None], is_stopped: Callable[[], bool]) -> None:
        """Until the one before, which did not give the lock back, cannot write any more."""
        query = block(self.session, "last_worker")
        said = False
        while rows := self.session.rows(query, {"tube": self.tube, "partition": partition}):
            owner, has_ended, seconds, seen_at = rows[0]
            if has_ended or seconds > self._grace or not _may_write(owner, self._job, seen_at) or is_stopped():
                return
            if not said:
                who = f"process {owner.get('pid')} on {owner.get('host')}"
                say(f"{who} lost partition {partition} of {self.tube}: waiting until it writes no more")
                said = True
            time.sleep(_PAUSE)


def check_generation(session: Session, tube: str, partition: int, generation: int) -> None:
    """Raise HoldLost unless this is still the generation of a partition; for tasks with sessions of their own."""
    rows = session.rows(block(session, "generation"), {"tube": tube, "partition": partition})
    if not rows or rows[0][0] != generation:
        raise _lost(session, tube, partition)


def _may_write(owner: dict[str, Any], job: str, seen_at: datetime) -> bool:
    """Whether a write of the one before may still be under way; not if it was this very job, or its process is dead."""
    if owner.pop("job", None) == job:
        return False
    try:
        return why_lost(Owner(**owner), seen_at) is None
    except TypeError:  # of another version
        return True


def _lost(session: Session, tube: str, partition: int) -> HoldLost:
    return HoldLost(
        f"partition {partition} of the tube {tube} was taken over by somebody else",
        cure="one worker a partition is enough: stop this one or the other",
        node=session.node.name,
    )


def _json(value: Any) -> str:
    return json.dumps(value)
