"""The size of the next batch, and the length of the next pause."""

from __future__ import annotations

import random
from typing import Protocol

_FIRST_KEYS = 2_000
_MAX_SECONDS = 30.0


class Limits(Protocol):
    """The sizes and the aimed-at seconds of a batch; they change when another engine takes over."""

    @property
    def least_keys_at_once(self) -> int:
        """Return the keys below which the limit of a batch is not lowered."""
        ...

    @property
    def keys_at_once(self) -> int:
        """Return the most keys of a batch."""
        ...

    @property
    def seconds_at_once(self) -> float:
        """Return the aimed-at time of a batch."""
        ...


class Pace:
    """Batch sizes that take about the same time: large enough for the servers, small enough for live touches."""

    def __init__(self, pipeline: Limits, max_keys: int = 0) -> None:
        self._pipeline = pipeline
        self._max_keys = max_keys
        self.keys = min(self._most, max(_FIRST_KEYS, pipeline.least_keys_at_once))

    @property
    def _most(self) -> int:
        return self._max_keys or self._pipeline.keys_at_once

    def learn(self, keys: int, seconds: float) -> None:
        """Adapt to the time that a batch took. A fast batch that was far from full says nothing."""
        aim, most = self._pipeline.seconds_at_once, self._most
        if seconds > aim or keys >= self.keys // 2:
            factor = max(0.5, min(2.0, aim / max(seconds, 0.001)))
            self.keys = int(max(min(self._pipeline.least_keys_at_once, most), min(most, self.keys * factor)))


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
