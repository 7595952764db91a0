"""Between two tasks of a run: is it asked to pause or stop, is a node too busy for a gentle run, is it too fast?

Whoever waits says why, on the terminal and in the task store.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from trueup.config.settings import DiffSettings
from trueup.db.watch import Load, Watch
from trueup.engine.progress import Progress
from trueup.errors import Interrupted

_ASK_SECONDS = 0.5
_WAIT_SECONDS = 0.1
_SAY_SECONDS = 10.0
# A hard cap is kept over about so long: whoever was slower for a while may not make up for it at once.
_SAVED_SECONDS = 1.0


class Steering:
    """The gate of a run: it lets tasks pass, waits, or ends the run."""

    def __init__(
        self,
        settings: DiffSettings,
        wanted: Callable[[], str],
        progress: Progress,
        watch: Watch | None = None,
        *,
        resume: str = "",
    ) -> None:
        self._settings = settings
        self._wanted = wanted
        self._progress = progress
        self._watch = watch
        self._resume = resume
        self._asked_at = 0.0
        self._answer = ""
        self._budget = Budget(settings.max_rows_per_second)

    @property
    def one_at_a_time(self) -> bool:
        """Whether tasks are small and go one by one."""
        return is_gentle(self._settings)

    def spend(self, rows: int) -> None:
        """So many rows were read on a node."""
        self._budget.spend(rows)

    def gate(self, count: int) -> int:
        """How many of so many tasks may begin now; waits until it is at least one."""
        said_at = waiting_since = 0.0
        while (reason := self._reason()) is not None:
            now = time.monotonic()
            waiting_since = waiting_since or now
            if reason and now - said_at >= _SAY_SECONDS:
                self._progress.wait(reason)
                said_at = now
            time.sleep(_WAIT_SECONDS)
        if said_at:
            self._progress.wait("")
            self._progress.say(f"going on after {time.monotonic() - waiting_since:.0f} s")
        return 1 if self.one_at_a_time else count

    def sleep(self, seconds: float) -> None:
        """Wait so long, and no longer than until the run is to end."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._what_is_wanted() == "stop":
                raise Interrupted("stopped from outside", cure=self._resume)
            time.sleep(min(left, _WAIT_SECONDS))

    def _reason(self) -> str | None:
        """Why to wait; None: there is no reason, '': one that needs no words."""
        wanted = self._what_is_wanted()
        if wanted == "stop":
            raise Interrupted("stopped from outside", cure=self._resume)
        if wanted == "pause":
            return "paused (trueup tasks resume lets it go on)"
        if self._settings.gentle and self._watch is not None:
            busy = [text for load in self._watch.loads() if (text := too_busy(load, self._settings))]
            if busy:
                return "; ".join(busy)
        return "" if self._budget.is_spent() else None

    def _what_is_wanted(self) -> str:
        now = time.monotonic()
        if now - self._asked_at >= _ASK_SECONDS:
            self._asked_at = now
            self._answer = self._wanted()
        return self._answer


class Budget:
    """So many rows a second at most; 0: any number."""

    def __init__(self, rows_per_second: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rows_per_second
        self._clock = clock
        self._left = 0.0
        self._at = clock()

    def spend(self, rows: int) -> None:
        """Rows were read; more than there were is a debt that has to be waited for."""
        self._left -= rows

    def is_spent(self) -> bool:
        """Whether to wait before reading more."""
        if not self._rate:
            return False
        now = self._clock()
        self._left = min(self._left + (now - self._at) * self._rate, self._rate * _SAVED_SECONDS)
        self._at = now
        return self._left < 0


def is_gentle(settings: DiffSettings) -> bool:
    """Whether blocks are hashed in small pieces, one query at a time."""
    return settings.gentle or settings.max_rows_per_second > 0


def too_busy(load: Load, settings: DiffSettings) -> str:
    """Why a node should be left alone for now, or nothing."""
    if load.lag is not None and load.lag > settings.max_lag:
        return f"{load.node}: replication is {load.lag:.1f} s behind (limit {settings.max_lag:g} s)"
    if load.active is not None and load.active > settings.max_active_sessions:
        return f"{load.node}: {load.active} sessions are active (limit {settings.max_active_sessions})"
    if load.lock_waits > settings.max_lock_waits:
        return f"{load.node}: {load.lock_waits} sessions wait for locks (limit {settings.max_lock_waits})"
    return ""
