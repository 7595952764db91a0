"""Control pods: garbage collection after a backfill or TRUNCATE, scheduled backfills, reported capture problems."""

from __future__ import annotations

from collections.abc import Collection

from trueup.capture.triggers.model import Pod
from trueup.capture.triggers.scheduled import Scheduled
from trueup.capture.triggers.shape import Shapes
from trueup.errors import CheckFailed, QueryError, TrueupError
from trueup.verbs.tube.garbage import Garbage
from trueup.verbs.tube.model import Job
from trueup.verbs.tube.waiting import Waiting


class Control:
    """The control pods that a job has received and not finished."""

    def __init__(self, job: Job, waiting: Waiting) -> None:
        self._job = job
        self._waiting = waiting
        self.garbage = Garbage(job.hold)
        self.scheduled = Scheduled(job.session.node, job.session.schema, job.tube)

    @property
    def is_busy(self) -> bool:
        """Whether control pods are not finished."""
        return bool(self.garbage or self.scheduled)

    @property
    def pods(self) -> list[int]:
        """Return the numbers of unfinished control pods, which must not be claimed again."""
        return self.garbage.pods + self.scheduled.pods

    def receive(self, partition: int, pod: Pod) -> None:
        """Start the work of a control pod. The batch that it came with has been written."""
        job, payload = self._job, pod.message
        if pod.op in ("}", "X"):
            self.garbage.add(partition, pod)
        elif pod.op == "{":
            job.say(f"backfill of {payload.get('table')} started ({payload.get('reason')})")
            self.scheduled.add(partition, pod)
        else:
            effect = "touches are LOST, run a backfill" if payload.get("lost") else "no touches are lost"
            job.say(f"TROUBLE in {payload.get('table')}: {payload.get('error')} ({effect})")
            if payload.get("lost"):
                self._incomplete(pod, f"touches were lost: {payload.get('error')}")
            self._trouble(partition, pod)

    def step(self, shapes: Shapes, aside: Collection[int]) -> None:
        """Process one page of garbage and check the scheduled backfill. Nothing may be written at the same time."""
        self.garbage.set_aside(aside)
        if self.garbage:
            source_shapes = shapes.get(self.garbage.sources)
            if text := self._waiting.while_down(lambda: self.garbage.step(self._job.sink, source_shapes)):
                self._job.say(text)
        finished, error = self.scheduled.step()
        if finished is not None:
            partition, pod = finished
            self._job.hold.acknowledge_control(partition, pod.seq)
            self._job.say(f"all keys of {pod.message['table']} are in the tube")
        if error is not None:
            self._backfill_failed(error, aside)

    def close(self) -> None:
        """Stop the backfill that is running."""
        self.scheduled.close()

    def _backfill_failed(self, error: TrueupError, aside: Collection[int]) -> None:
        self._job.say(f"scheduled backfill failed: {error}")
        if self.scheduled.source in aside:
            # The control pod stays in the tube.
            self.scheduled.give_up()
        elif isinstance(error, CheckFailed) or (isinstance(error, QueryError) and error.sqlstate[:2] == "42"):
            # The table or column does not exist: another attempt would fail as well.
            partition, pod = self.scheduled.give_up()
            self._incomplete(pod, f"a backfill failed: {error}")
            self._trouble(partition, pod)

    def _incomplete(self, pod: Pod, reason: str) -> None:
        """Note what no touch will bring to the copy, before the pod that says so is deleted."""
        self._job.session.call("tube_incomplete", pod.source, reason)

    def _trouble(self, partition: int, pod: Pod) -> None:
        self._job.summary.troubles += 1
        self._job.hold.acknowledge_control(partition, pod.seq, trouble=True)
