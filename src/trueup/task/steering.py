"""Decide between two tasks of a run whether to continue, wait or stop.

A run waits while it is paused, while a node is too busy for a gentle run, or when it has read its rows per second. It
reports the reason on the terminal and in the task store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trueup.config.settings import DiffSettings
from trueup.db.watch import Load, Watch
from trueup.engine.progress import Progress
from trueup.errors import ConfigError, Interrupted
from trueup.rows.request import TableRequest
from trueup.task.open import OpenTask

ASK_SECONDS = 0.5
_WAIT_SECONDS = 0.1
_REPORT_SECONDS = 10.0
# Unused rows of the limit are kept for this time, so that a slow phase is not followed by a burst.
_SAVED_SECONDS = 1.0
# Seconds between two looks at the load of the nodes, and before the first one.
_WATCH_SECONDS, _GENTLE_WATCH_SECONDS = 5.0, 1.0


class Steering:
    """Decides when tasks of a run may start."""

    def __init__(
        self,
        settings: DiffSettings,
        requested: Callable[[], str],
        progress: Progress,
        watch: Watch | None = None,
        *,
        resume: str = "",
    ) -> None:
        self._settings = settings
        self._requested = requested
        self._progress = progress
        self._watch = watch
        self._resume = resume
        self._asked_at = 0.0
        self._answer = ""
        self._budget = Budget(settings.max_rows_per_second)

    @property
    def one_at_a_time(self) -> bool:
        """Whether tasks run one at a time."""
        return is_gentle(self._settings)

    def spend(self, rows: int) -> None:
        """Count rows that were read on a node."""
        self._budget.spend(rows)

    def gate(self, count: int) -> int:
        """Return how many of the next `count` tasks may start; block until at least one may."""
        reported_at = waiting_since = 0.0
        while (reason := self._reason()) is not None:
            now = time.monotonic()
            waiting_since = waiting_since or now
            if reason and now - reported_at >= _REPORT_SECONDS:
                self._progress.wait(reason)
                reported_at = now
            time.sleep(_WAIT_SECONDS)
        if reported_at:
            self._progress.wait("")
            self._progress.say(f"continued after {time.monotonic() - waiting_since:.0f} s")
        return 1 if self.one_at_a_time else count

    def sleep(self, seconds: float) -> None:
        """Wait; raise Interrupted when a stop is requested, also after 0 seconds."""
        until = time.monotonic() + seconds
        while True:
            if self._request() == "stop":
                raise self._stopped()
            if (left := until - time.monotonic()) <= 0:
                return
            time.sleep(min(left, _WAIT_SECONDS))

    def _reason(self) -> str | None:
        """Return the reason to wait; None: no reason, '': the limit of rows per second, which is not reported."""
        request = self._request()
        if request == "stop":
            raise self._stopped()
        if request == "pause":
            return "paused (continue with: trueup tasks resume)"
        if self._settings.gentle and self._watch is not None:
            busy = [text for load in self._watch.loads() if (text := too_busy(load, self._settings))]
            if busy:
                return "; ".join(busy)
        return "" if self._budget.is_spent() else None

    def _stopped(self) -> Interrupted:
        return Interrupted("stopped with `trueup tasks stop`", cure=self._resume)

    def _request(self) -> str:
        now = time.monotonic()
        if now - self._asked_at >= ASK_SECONDS:
            self._asked_at = now
            self._answer = self._requested()
        return self._answer


class Budget:
    """A limit of rows per second; 0: no limit."""

    def __init__(self, rows_per_second: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rows_per_second
        self._clock = clock
        self._left = 0.0
        self._counted_at = clock()

    def spend(self, rows: int) -> None:
        """Count rows that were read; more than the limit is a debt to wait for."""
        self._left -= rows

    def is_spent(self) -> bool:
        """Whether to wait before reading more."""
        if not self._rate:
            return False
        now = self._clock()
        self._left = min(self._left + (now - self._counted_at) * self._rate, self._rate * _SAVED_SECONDS)
        self._counted_at = now
        return self._left < 0


def has_watch(settings: DiffSettings) -> bool:
    """Whether the limit of connections allows one per node for watching its load."""
    return settings.max_connections == 0 or settings.max_connections >= (3 if settings.gentle else 4)


@contextmanager
def open_steering(
    request: TableRequest, requested: Callable[[], str], application: str, task: OpenTask
) -> Iterator[Steering]:
    """Open the steering of a run, with a watch over the nodes if the limit of connections allows one."""
    settings = request.settings
    resume = f"continue with --resume {task.short_id}"
    if not has_watch(settings):
        if settings.gentle:
            raise ConfigError(
                "--gentle needs one connection per node to watch its load",
                cure="allow at least 3 connections: --max-connections 3",
            )
        yield Steering(settings, requested, task.progress, resume=resume)
        return
    watch = Watch(
        request.nodes,
        application=application,
        interval=_GENTLE_WATCH_SECONDS if settings.gentle else _WATCH_SECONDS,
        delay=0.0 if settings.gentle else _WATCH_SECONDS,
        report=task.progress.say,
    )
    try:
        watch.start()
        yield Steering(settings, requested, task.progress, watch, resume=resume)
    finally:
        watch.close()


def is_gentle(settings: DiffSettings) -> bool:
    """Whether blocks are hashed in small steps, one query at a time."""
    return settings.gentle or settings.max_rows_per_second > 0


def too_busy(load: Load, settings: DiffSettings) -> str:
    """Return why a gentle run waits for this node, or ''."""
    if load.lag is not None and load.lag > settings.max_lag:
        return f"{load.node}: replication is {load.lag:.1f} s behind (limit {settings.max_lag:g} s)"
    if load.active is not None and load.active > settings.max_active_sessions:
        return f"{load.node}: {load.active} sessions are active (limit {settings.max_active_sessions})"
    if load.lock_waits > settings.max_lock_waits:
        return f"{load.node}: {load.lock_waits} sessions wait for locks (limit {settings.max_lock_waits})"
    return ""
