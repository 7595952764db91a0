"""Background threads of the demos: the job, the application, and waiting for what they do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from trueup.errors import TrueupError

TIMEOUT = 300.0
# Settings of servers whose rows are acknowledged elsewhere: no warning that a crash can lose them.
DURABLE = {"fsync": "on"}


class Background(threading.Thread):
    """A background thread; its error is raised by `check` and `end`."""

    def __init__(self, work: Callable[[threading.Event], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self.stop = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Run the function until it returns."""
        try:
            self.result = self._work(self.stop)
        except BaseException as error:
            self.error = error

    def check(self) -> None:
        """Raise the error of the thread, if any."""
        if self.error is not None:
            raise self.error

    def end(self) -> Any:
        """Stop the thread and return its result."""
        self.stop.set()
        self.join(TIMEOUT)
        self.check()
        return self.result


@contextmanager
def in_background(work: Callable[[threading.Event], Any]) -> Iterator[Background]:
    """Run a function in a background thread, and stop it at the end of the block."""
    thread = Background(work)
    thread.start()
    try:
        yield thread
    finally:
        thread.stop.set()
        thread.join(TIMEOUT)


def wait_until(condition: Callable[[], object], *threads: Background) -> None:
    """Wait for a condition; raises the error of a thread, and TrueupError after some minutes."""
    end = time.monotonic() + TIMEOUT
    while not condition():
        for thread in threads:
            thread.check()
        if time.monotonic() > end:
            raise TrueupError(
                f"a step of the demo took more than {TIMEOUT:g} s", cure="use fewer --rows, or a less loaded machine"
            )
        time.sleep(0.05)
