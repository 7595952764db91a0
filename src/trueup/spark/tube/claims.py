"""The driver part of a stream: holds the locks, claims the pods of a batch, deletes those of finished batches."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from datetime import datetime

from psycopg import sql

from trueup.capture.triggers import pods
from trueup.capture.triggers.batch import Batch
from trueup.capture.triggers.document import Mark
from trueup.capture.triggers.hold import Hold
from trueup.capture.triggers.model import Pod
from trueup.capture.triggers.problems import CHECK_SECONDS, Problem, check_tables
from trueup.capture.triggers.readers import Mark as RoundMark
from trueup.capture.triggers.readers import Reader
from trueup.capture.triggers.scheduled import Scheduled
from trueup.capture.triggers.session import Session
from trueup.capture.triggers.tubes import cover_each
from trueup.errors import CheckFailed, NodeError
from trueup.spark.tube.offsets import Offset
from trueup.spark.tube.options import StreamOptions

_BEAT_SECONDS = 2.0
_IDLE_SECONDS = 0.1
_log = logging.getLogger(__name__)


class Claims:
    """A session that holds the locks of the partitions of the stream while the query is running."""

    def __init__(self, options: StreamOptions) -> None:
        self.options = options
        self.session = Session(options.node, options.schema)
        partitions = pods.partitions_to_hold(self.session, options.tube, options.partitions)
        self.hold = Hold(self.session, options.tube, partitions, executors=True)
        self.hold.take(wait=options.wait, say=_log.warning)
        held = ",".join(map(str, self.hold.partitions))
        self._reader = Reader(options.schema, options.tube, f"stream {held}")
        self._is_checked = False
        self.partitions = pods.partitions_of(self.session, options.tube)
        self._scheduled = Scheduled(options.node, options.schema, options.tube)
        self._until: datetime | None = None
        # Tables with problems: the pods of those whose rows cannot be delivered wait.
        self._problems: dict[int, Problem] = {}
        self._check_at = 0.0
        # Number of keys per partition of the batches that are not deleted yet, for the statistics.
        self._touches: dict[int, dict[int, int]] = {}
        self._deleted = 0
        self._lost: NodeError | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def stop_at_now(self) -> None:
        """Claim no pods that are written after this moment."""
        with self._lock:
            self._until = self.session.rows(sql.SQL("SELECT clock_timestamp()").format())[0][0]

    def next(self, start: Offset, most_keys: int | None) -> Offset:
        """Delete the pods of `start`, which is committed, and return the next batch; `start` if no pods are waiting."""
        with self._lock:
            self._check()
            self._check_history(start)
            self._delete(start)
            self._step()
            self._check_tables()
            claimed = self._claim(most_keys)
            if not claimed and self._until is not None:
                self._end()
            mark = self._begin() if claimed else start.mark
        if not claimed:
            self._ended.wait(_IDLE_SECONDS)
            return start
        numbers: dict[int, list[int]] = {}
        touches = self._touches.setdefault(start.batch + 1, {})
        for partition, pod in claimed:
            numbers.setdefault(partition, []).append(pod.seq)
            touches[partition] = touches.get(partition, 0) + pod.size
        return Offset(start.batch + 1, {partition: tuple(seqs) for partition, seqs in numbers.items()}, mark)

    def done(self, end: Offset) -> None:
        """Delete the pods of a batch that Spark has committed."""
        with self._lock:
            self._check()
            self._check_history(end)
            self._delete(end)

    def read(self, end: Offset) -> list[tuple[int, Pod]]:
        """Return the existing pods of a batch with their partitions."""
        with self._lock:
            self._check()
            self._check_history(end)
            partition_of = {seq: partition for partition, numbers in end.pods.items() for seq in numbers}
            self._check_partitions(end)
            claimed_pods = pods.read(self.session, self.options.tube, list(partition_of), any_bytes=True)
            return [(partition_of[pod.seq], pod) for pod in claimed_pods]

    def close(self) -> None:
        """Release the locks. The pods of uncommitted batches stay."""
        self._ended.set()
        with self._lock:
            self._scheduled.close()
            with suppress(NodeError):  # another worker has taken the lock
                self.hold.release()
            self.session.close()

    def _claim(self, most_keys: int | None) -> list[tuple[int, Pod]]:
        claimed: list[tuple[int, Pod]] = []
        for partition in self.hold.partitions:
            new_pods = pods.claim(
                self.session,
                self.options.tube,
                partition,
                limit=self.options.most_pods if most_keys else 1_000_000,
                skip=self._scheduled.pods,
                max_keys=max(1, most_keys // len(self.hold.partitions)) if most_keys else None,
                aside=[source for source, problem in self._problems.items() if problem.stops],
                any_bytes=True,
            )
            for pod in new_pods:
                if self._until is not None and pod.at > self._until:
                    continue
                if pod.op == "{":
                    # The driver runs requested backfills.
                    self._scheduled.add(partition, pod)
                else:
                    claimed.append((partition, pod))
        return claimed

    def _check_tables(self) -> None:
        """Each minute, look for tables that were changed since they were attached, and log what is new."""
        if time.monotonic() < self._check_at:
            return
        cover_each(self.session, self.options.tube, patience=1.0)
        before, self._problems = self._problems, check_tables(self.session, self.options.tube)
        self._check_at = time.monotonic() + CHECK_SECONDS
        for source, problem in self._problems.items():
            if before.get(source) != problem:
                _log.warning("%s: %s%s", self.options.tube, "set aside: " if problem.stops else "", problem)

    def _end(self) -> None:
        """Raise CheckFailed if there are tables with problems: everything else is delivered."""
        self._check_at = 0.0
        self._check_tables()
        if self._problems:
            raise CheckFailed(
                [str(problem) for problem in self._problems.values()],
                cure="fix these tables, then start the stream again; the rows of the other tables are delivered",
                node=self.session.node.name,
            )

    def _step(self) -> None:
        ended, error = self._scheduled.step()
        if ended is not None:
            self.hold.acknowledge_control(ended[0], ended[1].seq)
        if error is not None:
            raise error

    def _delete(self, offset: Offset) -> None:
        # Spark asks repeatedly for the batch after the same offset while no pods are waiting.
        if offset.batch > self._deleted:
            self._check_partitions(offset)
            numbers = {partition: list(seqs) for partition, seqs in offset.pods.items()}
            touches = self._touches.pop(offset.batch, {})
            done = Batch({}, Mark(0, datetime.now().astimezone()), numbers, touches)
            deleted = self.hold.acknowledge(done, also=lambda: self._reader.done(self.session.connection, offset.mark))
            self._deleted = offset.batch
            if deleted < sum(map(len, numbers.values())):
                # A task has put back pods of a table that cannot be read.
                self._check_at = 0.0

    def _begin(self) -> RoundMark:
        with self.session.errors():
            return self._reader.begin(self.session.connection)

    def _check_history(self, offset: Offset) -> None:
        """Raise CheckFailed if the source went back since the checkpoint was written; a new checkpoint starts anew."""
        if self._is_checked:
            return
        connection = self.session.connection
        with self.session.errors():
            if not offset.batch:
                self._reader.forget(connection)
            elif self._reader.went_back(connection, offset.mark):
                raise CheckFailed(
                    [
                        f"the tube {self.options.tube} and the checkpoint of this stream do not belong together: the"
                        " source was restored or failed over to a standby that was behind, or another stream read the"
                        " tube meanwhile"
                    ],
                    cure="start the stream with a new checkpoint, and run a backfill: trueup tube backfill",
                    node=self.session.node.name,
                )
        self._is_checked = True

    def _check_partitions(self, offset: Offset) -> None:
        """Raise CheckFailed if the checkpoint has partitions that this stream does not hold."""
        if other := [partition for partition in offset.pods if partition not in self.hold.partitions]:
            raise CheckFailed(
                [f"the checkpoint contains partition {other[0]}, which this stream does not process"],
                cure="use the same partitions as before, or another checkpoint",
                node=self.session.node.name,
            )

    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost

    def _beat(self) -> None:
        """Send heartbeats while Spark works; a lost session is noticed before the next batch."""
        while not self._ended.wait(_BEAT_SECONDS):
            try:
                with self._lock:
                    self.hold.beat()
            except NodeError as error:
                self._lost = error
                return
