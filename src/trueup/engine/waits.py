"""Waits that Ctrl-C ends.

Python handles a signal in its main thread between two instructions. A signal that arrives just before that thread
begins to wait is handled when the wait ends, so every wait has an end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, wait
from typing import TypeVar

T = TypeVar("T")

_SECONDS = 0.5


def call(action: Callable[[], T]) -> T:
    """Call a function that does not end at a signal, in a thread: Ctrl-C ends the wait for it, and it goes on."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(action())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="trueup-call", daemon=True).start()
    wait_for([future], FIRST_COMPLETED)
    return future.result()


def wait_for(futures: Collection[Future[T]], return_when: str) -> tuple[set[Future[T]], set[Future[T]]]:
    """Wait as `concurrent.futures.wait` does, and return the futures that are done and the others."""
    while True:
        done, left = wait(futures, timeout=_SECONDS, return_when=return_when)
        failed = any(future.cancelled() or future.exception() is not None for future in done)
        if not left or (done and return_when == FIRST_COMPLETED) or (failed and return_when == FIRST_EXCEPTION):
            return done, left
