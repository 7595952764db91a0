"""The driver's half of a stream: it holds the locks, claims pods for the next batch, deletes those that are done."""

from __future__ import annotations

import threading
from contextlib import suppress
from datetime import datetime

from psycopg import sql

from trueup.capture.triggers import pods
from trueup.capture.triggers.batch import Batch
from trueup.capture.triggers.document import Mark
from trueup.capture.triggers.hold import Hold
from trueup.capture.triggers.model import Pod
from trueup.capture.triggers.scheduled import Scheduled
from trueup.capture.triggers.session import Session
from trueup.errors import CheckFailed, NodeError
from trueup.spark.tube.offsets import Offset
from trueup.spark.tube.options import StreamOptions

_BEAT_SECONDS = 2.0
_IDLE_SECONDS = 0.1


class Claims:
    """One session with the locks of the stream's partitions, as long as the query runs."""

    def __init__(self, options: StreamOptions) -> None:
        self.options = options
        self.session = Session(options.node, options.schema)
        self.hold = Hold(
            self.session, options.tube, pods.partitions_to_hold(self.session, options.tube, options.partitions)
        )
        self.hold.take(wait=options.wait, say=lambda text: None)
        self.partitions = pods.partitions_of(self.session, options.tube)
        self._scheduled = Scheduled(options.node, options.schema, options.tube)
        self._until: datetime | None = None
        # Keys of the batches that are not deleted yet, for the statistics.
        self._touches: dict[int, dict[int, int]] = {}
        self._deleted = 0
        self._lost: NodeError | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def only_what_is_here(self) -> None:
        """Claim nothing that was written after this moment."""
        with self._lock:
            self._until = self.session.rows(sql.SQL("SELECT clock_timestamp()").format())[0][0]

    def next(self, start: Offset, most_keys: int | None) -> Offset:
        """The batch after `start`, whose pods are done and deleted; `start` itself if nothing waits."""
        with self._lock:
            self._check()
            self._delete(start)
            self._step()
            claimed = self._claim(most_keys)
        if not claimed:
            self._ended.wait(_IDLE_SECONDS)
            return start
        found: dict[int, list[int]] = {}
        touches = self._touches.setdefault(start.batch + 1, {})
        for partition, pod in claimed:
            found.setdefault(partition, []).append(pod.seq)
            touches[partition] = touches.get(partition, 0) + len(pod.ids) + len(pod.keys or ())
        return Offset(start.batch + 1, {each: tuple(numbers) for each, numbers in found.items()})

    def done(self, end: Offset) -> None:
        """Spark has committed this batch: delete exactly its pods, if they are still there."""
        with self._lock:
            self._check()
            self._delete(end)

    def read(self, end: Offset) -> list[tuple[int, Pod]]:
        """The pods of a batch that are still there, with their partitions."""
        with self._lock:
            self._check()
            place = {seq: partition for partition, numbers in end.pods.items() for seq in numbers}
            self._check_mine(end)
            return [(place[pod.seq], pod) for pod in pods.read(self.session, self.options.tube, list(place))]

    def close(self) -> None:
        """Give the locks back. Pods of a batch that Spark has not committed stay."""
        self._ended.set()
        with self._lock:
            self._scheduled.close()
            with suppress(NodeError):  # whoever took over has the lock
                self.hold.release()
            self.session.close()

    def _claim(self, most_keys: int | None) -> list[tuple[int, Pod]]:
        claimed: list[tuple[int, Pod]] = []
        for partition in self.hold.partitions:
            found = pods.claim(
                self.session,
                self.options.tube,
                partition,
                most=self.options.most_pods if most_keys else 1_000_000,
                skip=self._scheduled.pods,
                most_keys=max(1, most_keys // len(self.hold.partitions)) if most_keys else None,
            )
            for pod in found:
                if self._until is not None and pod.at > self._until:
                    continue
                if pod.op == "{":
                    # Nobody downstream can run a backfill better than the driver.
                    self._scheduled.add(partition, pod)
                else:
                    claimed.append((partition, pod))
        return claimed

    def _step(self) -> None:
        ended, error = self._scheduled.step()
        if ended is not None:
            self.hold.acknowledge_control(ended[0], ended[1].seq)
        if error is not None:
            raise error

    def _delete(self, offset: Offset) -> None:
        # Spark asks again and again what comes after a batch, as long as nothing does.
        if offset.batch > self._deleted:
            self._check_mine(offset)
            numbers = {each: list(seqs) for each, seqs in offset.pods.items()}
            touches = self._touches.pop(offset.batch, {})
            self.hold.acknowledge(Batch({}, Mark(0, datetime.now().astimezone()), numbers, touches))
            self._deleted = offset.batch

    def _check_mine(self, offset: Offset) -> None:
        """A checkpoint of another share of the tube: its pods may be worked on by somebody else."""
        if wrong := [each for each in offset.pods if each not in self.hold.partitions]:
            raise CheckFailed(
                [f"the checkpoint is of partition {wrong[0]}, which this stream does not have"],
                cure="give the stream the partitions it had, or another checkpoint",
                node=self.session.node.name,
            )

    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost

    def _beat(self) -> None:
        """Signs of life while Spark works; a lost session is noticed before the next batch."""
        while not self._ended.wait(_BEAT_SECONDS):
            try:
                with self._lock:
                    self.hold.beat()
            except NodeError as error:
                self._lost = error
                return
