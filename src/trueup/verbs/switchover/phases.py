"""The budget of the pause, and how long each phase of it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trueup.errors import TrueupError

# The phases that applications wait through, in order; before them comes `prepare`, after them `after`.
FENCE = "fence"
FINAL_ROUND = "final round"
SEQUENCES = "sequences"
GATE = "gate"
POINTER = "pointer"
OPEN = "open"
PAUSE = (FENCE, FINAL_ROUND, SEQUENCES, GATE, POINTER, OPEN)
PREPARE = "prepare"
AFTER = "after"


class BudgetSpent(TrueupError):
    """The pause took longer than it may: everything was released, and the old database is in use as before."""


class Budget:
    """The seconds that applications may be made to wait; they run from the first request for the lock on."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._until: float | None = None

    def start(self) -> None:
        """The pause begins."""
        self._until = self._clock() + self.seconds

    @property
    def left(self) -> float:
        """Seconds that are left; all of them before the pause."""
        return self.seconds if self._until is None else self._until - self._clock()

    def milliseconds(self, phase: str) -> int:
        """What is left as a time-out for a server, which takes 0 for "no limit"; raises when nothing is left."""
        left = int(self.left * 1000)
        if left < 1:
            raise spent(self.seconds, phase)
        return left

    def check(self, phase: str) -> None:
        """Raise when nothing is left."""
        self.milliseconds(phase)


def spent(seconds: float, phase: str, why: str = "") -> BudgetSpent:
    """The error for a pause that took too long."""
    return BudgetSpent(
        f"the budget of {seconds:g} s was spent in the phase '{phase}'{f': {why}' if why else ''};"
        " all is released, and the old database is in use as before",
        cure="try again when less is going on, or allow more: --budget",
    )


class Phases:
    """Measures phases one after the other; `tell` hears of each when it begins."""

    def __init__(self, tell: Callable[[str], object] = lambda phase: None) -> None:
        self.milliseconds: dict[str, float] = {}
        self.now = ""
        self._tell = tell
        self._paused_at: float | None = None
        self.pause_ms = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure what is done inside."""
        begun = time.perf_counter()
        self.now = name
        if name == FENCE:
            self._paused_at = begun
        self.enter(name)
        try:
            yield
        finally:
            ended = time.perf_counter()
            self.milliseconds[name] = self.milliseconds.get(name, 0.0) + (ended - begun) * 1000
            if self._paused_at is not None and name in PAUSE:
                self.pause_ms = (ended - self._paused_at) * 1000

    def enter(self, name: str) -> None:
        """A phase begins."""
        self._tell(name)
