"""The size of the next batch, and the length of the next pause."""

from __future__ import annotations

import random

_MIN_KEYS = 250
_FIRST_KEYS = 2_000
_MAX_SECONDS = 30.0


class Pace:
    """Batch sizes that take about the same time: large enough for the servers, small enough for live touches."""

    def __init__(self, max_keys: int, seconds: float) -> None:
        self._max_keys = max_keys
        self._seconds = seconds
        self.keys = min(max_keys, _FIRST_KEYS)

    def learn(self, keys: int, seconds: float) -> None:
        """Adapt to the time that a batch took. A fast batch that was far from full says nothing."""
        if seconds > self._seconds or keys >= self.keys // 2:
            factor = max(0.5, min(2.0, self._seconds / max(seconds, 0.001)))
            self.keys = int(max(min(_MIN_KEYS, self._max_keys), min(self._max_keys, self.keys * factor)))


class Pause:
    """Growing pauses with jitter, so that several jobs do not retry at the same moment."""

    def __init__(self, first: float = 0.2) -> None:
        self._seconds = first
        self.times = 0

    def next(self) -> float:
        """Return the seconds to wait now."""
        self.times += 1
        seconds, self._seconds = self._seconds, min(_MAX_SECONDS, self._seconds * 2)
        return seconds * random.uniform(0.8, 1.2)
