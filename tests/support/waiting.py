"""Pauses between looks at a condition."""

from __future__ import annotations

import time


class Pause:
    """Waits, a little longer each time: most conditions open a session, which costs more than it costs to wait."""

    def __init__(self, seconds: float = 0.05) -> None:
        self._seconds = seconds

    def __call__(self) -> None:
        time.sleep(self._seconds)
        self._seconds = min(1.5 * self._seconds, 0.5)
