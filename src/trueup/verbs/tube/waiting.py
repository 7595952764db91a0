"""The heartbeat of a job, and its waits: for a background step, for a sink that is down, for rows that are locked."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from trueup.capture.triggers.enrich import TEMPORARY
from trueup.config.wording import counted
from trueup.errors import CheckFailed, QueryError
from trueup.sinks.base import SinkDown
from trueup.verbs.tube.aside import Aside
from trueup.verbs.tube.letters import Letters
from trueup.verbs.tube.model import Job, Stopped
from trueup.verbs.tube.pace import Pause

T = TypeVar("T")

_BEAT_SECONDS = 1.0
_PROGRESS_SECONDS = 30.0
# A sink that this job has never reached is not waited for without an end: its address may be wrong.
FIRST_SECONDS = 20.0


class Waiting:
    """Keeps a job visible while it works or waits."""

    def __init__(self, job: Job, letters: Letters, aside: Aside) -> None:
        self._job = job
        self._letters = letters
        self._aside = aside
        self._beat_at = self._progress_at = time.monotonic()

    def beat(self) -> None:
        """Send a heartbeat, and do the periodic work that is due."""
        job, now = self._job, time.monotonic()
        job.hold.beat()
        if now - self._beat_at < _BEAT_SECONDS:
            return
        self._beat_at = now
        job.heartbeat()
        self._letters.refresh()
        self._aside.beat()
        if now - self._progress_at >= _PROGRESS_SECONDS:
            self._progress_at = now
            if rate := job.hold.rate():
                job.say(f"{rate:,.0f} keys/s, {counted(job.summary.keys, 'key')} in total")

    def result(self, future: Future[T]) -> T:
        """Return the result of a background step; send heartbeats until it is available."""
        while not wait([future], timeout=_BEAT_SECONDS).done:
            self.beat()
        return future.result()

    def while_down(
        self, attempt: Callable[[], T], *, refused: Callable[[SinkDown], None] = lambda error: None, uses: bool = True
    ) -> T:
        """Call `attempt` until the sink accepts it; `refused` is called with each error.

        A sink that was never reached is not waited for; `uses` is False if `attempt` may not need the sink.
        """
        pause = Pause()
        while True:
            try:
                result = attempt()
            except SinkDown as error:
                self._raise_if_never_reached(error)
                self._job.summary.outages += not pause.times
                refused(error)
                self._pause(f"the sink is down: {error}", pause)
            else:
                self._job.sink_was_reached |= uses
                self._resume()
                return result

    def _raise_if_never_reached(self, error: SinkDown) -> None:
        job, now = self._job, time.monotonic()
        job.sink_down_since = job.sink_down_since or now
        if not job.sink_was_reached and now - job.sink_down_since >= FIRST_SECONDS:
            raise CheckFailed(
                [f"the sink was not reached since the start of the job: {error.message}"],
                cure=f"check the address; {error.cure}" if error.cure else "check the address, and start the job again",
                node=error.node,
            ) from None

    def while_locked(self, attempt: Callable[[], T], *, check: Callable[[QueryError], None]) -> T:
        """Call `attempt` until the rows can be read: a table may be locked, or the server may be out of resources.

        `check` is called with each error, and may raise.
        """
        pause = Pause()
        while True:
            try:
                result = attempt()
            except QueryError as error:
                if error.sqlstate[:2] not in TEMPORARY:
                    raise
                check(error)
                self._pause(f"rows cannot be read now: {error}", pause)
            else:
                self._resume()
                return result

    def _pause(self, reason: str, pause: Pause) -> None:
        """Wait before the next attempt; raise Stopped if the job is asked to stop."""
        job = self._job
        if reason != job.hold.waiting:
            job.progress.wait(f"{job.tube}: {reason}")
        job.hold.waiting = reason
        ends_at = time.monotonic() + pause.next()
        while time.monotonic() < ends_at and not job.stop.is_set():
            self.beat()
            job.stop.wait(min(_BEAT_SECONDS, max(0.0, ends_at - time.monotonic())))
        if job.stop.is_set():
            raise Stopped

    def _resume(self) -> None:
        if self._job.hold.waiting:
            self._job.hold.waiting = ""
            self._job.progress.wait("")
            self._job.say("resumed")
