"""Start Spark in the background, while other work runs, and end the start when it is not needed any more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar

from trueup.engine.launch import Launch
from trueup.errors import EngineError


class Closable(Protocol):
    """What is started."""

    def close(self) -> None:
        """Stop it."""


S = TypeVar("S", bound=Closable)

# Java ends within this time, unless it hangs: a run that is finished waits for it.
END_SECONDS = 3.0


class BackgroundStart(Generic[S]):
    """Calls `start` once in a thread, when `begin` is called."""

    def __init__(self, start: Callable[[Launch], S]) -> None:
        self._start = start
        self._launch = Launch()
        self._future: Future[S] = Future()
        self._thread: threading.Thread | None = None
        self._began = 0.0
        self._is_closed = False
        self._lock = threading.Lock()

    def begin(self, prepare: Callable[[S], object]) -> None:
        """Start, if that has not begun; what was started is ready after `prepare`."""
        with self._lock:
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._run, args=(prepare,), name="trueup-spark", daemon=True)
                self._began = time.monotonic()
                self._thread.start()

    @property
    def waited_seconds(self) -> float:
        """For how long it has been starting; 0 if it has not begun, or is done."""
        return 0.0 if self._thread is None or self.is_done else time.monotonic() - self._began

    @property
    def is_done(self) -> bool:
        """Whether it has started, or failed to start."""
        return self._future.done()

    def result(self) -> S:
        """Return what was started, or raise why it did not start."""
        return self._future.result()

    def now(self) -> S | None:
        """Return what was started; None if it is not done, or has failed."""
        is_started = self._future.done() and self._future.exception() is None
        return self._future.result() if is_started else None

    def close(self) -> None:
        """End a start that is not done, and stop what was started."""
        with self._lock:
            self._is_closed = True
        if self._thread is not None:
            if not self._future.done():
                self._launch.end()
                self._thread.join(END_SECONDS)
                if self._thread.is_alive():
                    self._launch.kill()
            # What does not end then, ends with this process.
            self._thread.join(END_SECONDS)
            if (started := self.now()) is not None:
                started.close()

    def _run(self, prepare: Callable[[S], object]) -> None:
        try:
            started = self._start(self._launch)
            try:
                prepare(started)
            except BaseException:
                started.close()
                raise
        except EngineError as error:
            self._future.set_exception(error)
        except BaseException as error:
            self._future.set_exception(EngineError(f"Spark failed to start: {type(error).__name__}: {error}"))
        else:
            self._future.set_result(started)
