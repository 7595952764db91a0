"""How large the next batch is, and how long the next pause."""

from __future__ import annotations

import random

_LEAST_KEYS = 250
_LONGEST = 30.0


class Pace:
    """Batches that take about so long: large enough for the servers, small enough for a live touch behind one."""

    def __init__(self, most_keys: int, seconds: float) -> None:
        self._most = most_keys
        self._seconds = seconds
        self.keys = min(most_keys, 2_000)

    def learn(self, keys: int, seconds: float) -> None:
        """A batch of so many keys took so long. One that was not full says little."""
        if seconds > self._seconds or keys >= self.keys // 2:
            factor = max(0.5, min(2.0, self._seconds / max(seconds, 0.001)))
            self.keys = int(max(min(_LEAST_KEYS, self._most), min(self._most, self.keys * factor)))


class Pause:
    """Growing pauses, no two jobs in step."""

    def __init__(self, first: float = 0.2) -> None:
        self._seconds = first
        self.times = 0

    def next(self) -> float:
        """The seconds to wait now."""
        self.times += 1
        seconds, self._seconds = self._seconds, min(_LONGEST, self._seconds * 2)
        return seconds * random.uniform(0.8, 1.2)
