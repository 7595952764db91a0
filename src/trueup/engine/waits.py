"""Waits that Ctrl-C ends.

Python handles a signal in its main thread between two instructions. A signal that arrives just before that thread
begins to wait is handled when the wait ends, so every wait has an end.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, wait
from typing import TypeVar

T = TypeVar("T")

_SECONDS = 0.5


def wait_for(futures: Collection[Future[T]], return_when: str) -> tuple[set[Future[T]], set[Future[T]]]:
    """Wait as `concurrent.futures.wait` does, and return the futures that are done and the others."""
    while True:
        done, left = wait(futures, timeout=_SECONDS, return_when=return_when)
        failed = any(future.cancelled() or future.exception() is not None for future in done)
        if not left or (done and return_when == FIRST_COMPLETED) or (failed and return_when == FIRST_EXCEPTION):
            return done, left
