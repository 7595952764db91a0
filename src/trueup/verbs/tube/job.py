"""A job from its start to its end: the engine, the locks, the task store; and again if the node was lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

from trueup.capture.triggers import pods
from trueup.capture.triggers.hold import GRACE, Hold
from trueup.capture.triggers.session import Session
from trueup.config.secrets import mask
from trueup.config.settings import SparkSettings
from trueup.engine.progress import Progress
from trueup.engine.slots import cores_here
from trueup.errors import CheckFailed, NodeError, QueryError
from trueup.sinks.base import Sink
from trueup.store import TaskStore
from trueup.task.open import open_task
from trueup.verbs.tube.lanes import Lanes, LocalLanes, SparkLanes, packed
from trueup.verbs.tube.pace import Pause
from trueup.verbs.tube.run import Job, Limits, Stopped, Summary

_PAUSED = "paused (trueup tasks resume lets it go on)"
_PAUSED_SECONDS = 0.5
MOST_BYTES = 32 * 1024 * 1024
_MOST_LANES = 4
# Classes of errors that pass: conflicts, resources, locks, operators.
_PASSING = ("40", "53", "55", "57")
_AGAIN_SECONDS = 60.0
# After so long without an error, pauses are short again.
_WORKED_SECONDS = 60.0


class Running:
    """What a job is made of, and the loop around it."""

    def __init__(
        self,
        session: Session,
        tube: str,
        sink: Sink,
        *,
        partitions: Sequence[int] = (),
        limits: Limits,
        spark: SparkSettings,
        wait: float = 0.0,
        grace: float = GRACE,
        most_bytes: int = MOST_BYTES,
        progress: Progress,
        stop: threading.Event,
    ) -> None:
        self.session, self.tube, self.sink = session, tube, sink
        self.packed = packed(sink)
        self.limits, self.spark, self.wait = limits, spark, wait
        self.most_bytes, self.progress, self.stop = most_bytes, progress, stop
        self.summary = Summary(tube)
        self.hold = Hold(session, tube, pods.partitions_to_hold(session, tube, partitions), grace=grace)
        self._had_locks = False
        self.beat: Callable[[Summary, str], None] = lambda summary, waiting: None

    def run(self) -> Summary:
        """Until it is stopped; a node that is lost is waited for, the locks are taken again."""
        begun = time.monotonic()
        pause = Pause()
        with self._engine() as engine:
            while True:
                worked_at = time.monotonic()
                try:
                    self._once(engine)
                    break
                except (NodeError, QueryError) as error:
                    if not self._had_locks or (isinstance(error, QueryError) and error.sqlstate[:2] not in _PASSING):
                        raise
                    if time.monotonic() - worked_at > _WORKED_SECONDS:
                        pause = Pause()
                    self.summary.outages += 1
                    self.session.close()
                    self.progress.wait(f"{self.tube}: {error}")
                    self.beat(self.summary, str(error))
                    if self.stop.wait(pause.next()):
                        break
        self.summary.seconds = round(time.monotonic() - begun, 3)
        return self.summary

    def _once(self, engine: Any) -> None:
        """With the locks, until the end or until the session is lost."""
        # After an outage the server may not know yet that our old session is gone.
        wait = max(self.wait, _AGAIN_SECONDS) if self._had_locks else self.wait
        try:
            self.hold.take(wait=wait, say=self.progress.say, is_stopped=self.stop.is_set)
        except CheckFailed:
            self.hold.release()
            if self.stop.is_set():
                return
            raise
        self._had_locks = True
        lanes = self._lanes(engine)
        job = Job(
            self.session, self.hold, self.sink, lanes, self.limits, self.summary, self.progress, self.stop, self.beat
        )
        try:
            with suppress(Stopped):
                job.run()
            self.summary.dead_letters = job.letters.count
        finally:
            job.close()
            # What is being written must be at its end before anybody else, or this job again, may have the locks.
            lanes.close()
        self.hold.release()

    def _lanes(self, engine: Any) -> Lanes:
        node = self.session.reading_node()
        if engine is None:
            count = min(cores_here(), _MOST_LANES)
            return LocalLanes(node, self.sink, self.packed, lanes=count, most_bytes=self.most_bytes)
        return SparkLanes(
            engine,
            self.session,
            self.tube,
            node,
            self.sink,
            self.packed,
            generations=self.hold.generations,
            most_bytes=self.most_bytes,
        )

    @contextmanager
    def _engine(self) -> Iterator[Any]:
        """Spark where it was asked for or a cluster is configured; else none: threads are faster to the first row."""
        settings = self.spark
        wanted = settings.engine == "spark" or (settings.engine == "auto" and bool(settings.master or settings.remote))
        if wanted and not self.packed:
            if settings.engine == "spark":
                raise CheckFailed(["this sink can be written by this process only"], cure="use --engine local")
            wanted = False
        if not wanted:
            yield None
            return
        from trueup.engine.choose import EngineStarter

        starter = EngineStarter(settings, concurrency_factor=1.0, max_connections=0)
        try:
            yield starter.get(rows=settings.local_rows)
        finally:
            starter.close()


def run_as_task(running: Running, *, sink_name: str, task_db: str | None, configured: str = "") -> Summary:
    """The same, written down in the task store: who runs it, how far it is, how it ended; it may be asked to stop."""
    request = {
        "tube": running.tube,
        "node": running.session.node.name,
        "sink": mask(sink_name),
        "partitions": list(running.hold.partitions),
    }
    with (
        TaskStore(task_db, configured=configured) as store,
        open_task(
            store,
            "TUBE_RUN",
            table=running.tube,
            context=request,
            on_interrupt="start it again: no change is lost",
        ) as task,
    ):

        def beat(summary: Summary, waiting: str) -> None:
            facts: dict[str, object] = {"stage": "tube run", "keys": summary.keys, "pods": summary.pods}
            facts.update({"keys_per_second": round(running.hold.rate()), "parked": summary.parked})
            if waiting:
                facts["waiting"] = waiting
            task.heartbeat(facts)
            paused = False
            while (wanted := task.request()) == "pause" and not running.stop.wait(_PAUSED_SECONDS):
                paused = True
                running.hold.waiting = _PAUSED
                running.hold.beat()
                task.heartbeat({**facts, "waiting": _PAUSED})
            if paused:
                running.hold.waiting = waiting
            if wanted == "stop":
                running.stop.set()

        running.beat = beat
        summary = running.run()
        task.finish(asdict(summary))
        return summary
