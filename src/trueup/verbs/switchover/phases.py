"""The phases of a switchover: their names, the budget of the pause, and how long each phase took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trueup.errors import TrueupError

# The phases that applications wait through, in order; `prepare` comes before them, `after` follows.
FENCE = "fence"
FINAL_ROUND = "final round"
SEQUENCES = "sequences"
GATE = "gate"
POINTER = "pointer"
OPEN = "open"
PAUSE = (FENCE, FINAL_ROUND, SEQUENCES, GATE, POINTER, OPEN)
# The end of a rehearsal, instead of the last two.
RELEASE = "release"
PREPARE = "prepare"
AFTER = "after"

# The server ends a session whose transaction is idle, or lasts, for longer than what was left of the budget.
SERVER_LIMITS = ("25P03", "25P04")


class BudgetSpent(TrueupError):
    """The pause would exceed its budget: everything was released, and the old database is still in use."""


class Budget:
    """The maximum seconds of the pause, counted from the request for the fence; of all pauses if one gave way."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._rest = seconds
        self._until: float | None = None

    def start(self) -> None:
        """Start to count, or continue."""
        self._until = self._clock() + self.left

    def stop(self) -> None:
        """Stop to count: applications do not wait."""
        self._rest, self._until = self.left, None

    @property
    def left(self) -> float:
        """The seconds left; all of them before the pause."""
        return self._rest if self._until is None else self._until - self._clock()

    def milliseconds(self, phase: str) -> int:
        """Return the time left as a time-out for a server, at least 1; raise BudgetSpent if none is left."""
        left = int(self.left * 1000)
        if left < 1:
            raise spent(self.seconds, phase)
        return left


_LESS_LOAD = "try again when there is less load, or allow a longer pause: --budget"


def spent(seconds: float, phase: str, reason: str = "", *, cure: str = _LESS_LOAD) -> BudgetSpent:
    """Return the error for a pause that exceeds its budget."""
    return BudgetSpent(
        f"the budget of {seconds:g} s was spent in the phase '{phase}'{f': {reason}' if reason else ''};"
        " everything was released, and the old database is still in use",
        cure=cure,
    )


class Phases:
    """Measures phases one after the other."""

    def __init__(self) -> None:
        self.milliseconds: dict[str, float] = {}
        self._paused_at: float | None = None
        # The longest pause, if one gave way.
        self.pause_ms = 0.0
        self.current = PREPARE

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the block as a phase."""
        began = time.perf_counter()
        if name == FENCE:
            self._paused_at = began
        self.current = name
        self.enter(name)
        try:
            yield
        finally:
            ended = time.perf_counter()
            self.milliseconds[name] = self.milliseconds.get(name, 0.0) + (ended - began) * 1000
            if self._paused_at is not None and name in (*PAUSE, RELEASE):
                self.pause_ms = max(self.pause_ms, (ended - self._paused_at) * 1000)

    def enter(self, name: str) -> None:
        """Begin a phase; tests replace this method."""
