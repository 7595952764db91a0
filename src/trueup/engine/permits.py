"""The slots that the threads of this process and the waves of Spark share, so that together they use no more."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

# Python handles Ctrl-C between two waits.
_WAIT_SECONDS = 0.5


class Permits:
    """A number of slots, which are given in the order in which they are asked for."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._free = slots
        self._runs = 0
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def used_by_run(self) -> Iterator[None]:
        """Count a run that uses the slots while the block runs."""
        with self._changed:
            self._runs += 1
        try:
            yield
        finally:
            with self._changed:
                self._runs -= 1
                self._changed.notify_all()

    @property
    def is_shared(self) -> bool:
        """Whether several runs use the slots."""
        return self._runs > 1

    def has_free(self) -> bool:
        """Whether a wave would get slots at once."""
        with self._changed:
            return not self._waiting and self._free > self._reserved

    def take_one(self) -> None:
        """Wait for a slot, for one task."""
        self._take(1, is_wave=False)

    def take_most(self) -> int:
        """Wait for a free slot, for a wave; return how many are taken.

        If other runs use the slots too, one is left to them: a wave lasts much longer than a task.
        """
        return self._take(self.slots, is_wave=True)

    def give_back(self, slots: int = 1) -> None:
        """Return slots that were taken."""
        with self._changed:
            self._free += slots
            self._changed.notify_all()

    @property
    def _reserved(self) -> int:
        return int(self.is_shared and self.slots > 1)

    def _take(self, most: int, *, is_wave: bool) -> int:
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            try:
                while self._waiting[0] is not ticket or self._free <= (self._reserved if is_wave else 0):
                    self._changed.wait(_WAIT_SECONDS)
                taken = min(most, self._free - (self._reserved if is_wave else 0))
                self._free -= taken
                return taken
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()
