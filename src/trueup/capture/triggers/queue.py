"""The queue of a worker: yields the next batch of its partitions, and deletes the pods of a batch that is delivered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone

from trueup.capture.triggers import pods
from trueup.capture.triggers.batch import Batch, batch_of
from trueup.capture.triggers.document import Mark
from trueup.capture.triggers.hold import Hold
from trueup.capture.triggers.model import Pod
from trueup.capture.triggers.session import block
from trueup.capture.triggers.shape import Shapes


class Queue:
    """The waiting pods of the partitions that a hold has locked."""

    def __init__(self, hold: Hold, shapes: Shapes, *, max_pods: int) -> None:
        self._hold = hold
        self._shapes = shapes
        self._max_pods = max_pods
        # Batches that are claimed and not acknowledged: their pods are still in the tube.
        self._claimed: list[Batch] = []
        # Sources whose pods wait.
        self.aside: tuple[int, ...] = ()
        self._newest_seq = 0

    def next(self, max_keys: int, *, skip: Sequence[int]) -> Batch | None:
        """Claim the next batch without the pods in `skip`; None if no pods are waiting.

        Each partition gets the same share of the keys, so that no partition waits for the backfill of another one.
        """
        skip = [*skip, *(seq for batch in self._claimed for seq in batch.pods)]
        share = max(1, max_keys // len(self._hold.partitions))
        claimed: list[tuple[int, Pod]] = []
        for partition in self._hold.partitions:
            new_pods = pods.claim(
                self._hold.session,
                self._hold.tube,
                partition,
                limit=self._max_pods,
                skip=skip,
                max_keys=share,
                aside=self.aside,
                any_bytes=True,
            )
            claimed += [(partition, pod) for pod in new_pods]
        if not claimed:
            return None
        self._newest_seq = max(self._newest_seq, *(pod.seq for _, pod in claimed))
        shapes = self._shapes.get({pod.source for _, pod in claimed})
        batch = batch_of(claimed, shapes)
        self._claimed.append(batch)
        return batch

    def newest_mark(self) -> Mark:
        """Return a mark that is as new as the newest pod claimed so far."""
        return Mark(self._newest_seq, datetime.now(timezone.utc))

    def acknowledge(self, batch: Batch, *, also: Callable[[], object]) -> int:
        """Delete the pods of a batch in one transaction with the writes of `also`; return how many were deleted."""
        deleted = self._hold.acknowledge(batch, also=also)
        self.release(batch)
        return deleted

    def release(self, batch: Batch) -> None:
        """Let the pods of a batch be claimed again."""
        self._claimed = [other for other in self._claimed if other is not batch]

    def is_drained(self) -> bool:
        """Whether no pods are waiting, except those of tables that are set aside, and no backfill is running."""
        session, tube = self._hold.session, self._hold.tube
        # In this order: the last pods of a backfill are visible before it is marked as finished.
        running = session.rows(block(session, "running_backfills"), {"tube": tube})[0][0]
        return not running and not any(
            pods.claim(session, tube, partition, limit=1, skip=(), aside=self.aside, any_bytes=True)
            for partition in self._hold.partitions
        )
