"""What tables that are compared at the same time have in common: one engine, and one way to stop them all."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from trueup.db import reader
from trueup.db.snapshot import Control
from trueup.engine.choose import EngineStarter
from trueup.engine.work import Engine
from trueup.store import TaskStore
from trueup.task.connections import check_free


class Shared:
    """The engine of one or more runs, and who is at work with it."""

    def __init__(self, starter: EngineStarter, whole: str = "") -> None:
        self.starter = starter
        # The task that the runs are parts of: what is asked of it is asked of them.
        self._whole = whole
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._free: dict[str, int] = {}
        self._at_work: dict[str, Sequence[Control]] = {}

    def engine(self, rows: int, controls: Sequence[Control]) -> Engine:
        """The engine for a table of so many rows; whether the nodes have sessions enough for it is asked once."""
        engine = self.starter.get(rows)
        with self._lock:
            # Later on, sessions of ours would be counted as those of others.
            if engine.name not in self._free:
                self._free[engine.name] = check_free(controls, engine.slots)
            engine.most = self._free[engine.name]
        return engine

    def wanted(self, store: TaskStore, task_id: str) -> str:
        """What is asked of a run: 'stop', 'pause', or nothing."""
        if self._stopped.is_set():
            return "stop"
        return store.wanted(task_id) or (store.wanted(self._whole) if self._whole else "")

    @contextmanager
    def at_work(self, application: str, controls: Sequence[Control]) -> Iterator[None]:
        """The block reads with these sessions; `stop` ends its queries."""
        with self._lock:
            self._at_work[application] = controls
        try:
            yield
        finally:
            with self._lock:
                del self._at_work[application]

    def is_over(self, store: TaskStore) -> bool:
        """Whether all runs are to end."""
        return self._stopped.is_set() or (bool(self._whole) and store.wanted(self._whole) == "stop")

    def stop(self) -> None:
        """End all runs: none begins anything, and what is under way is cancelled."""
        self._stopped.set()
        with self._lock:
            at_work = dict(self._at_work)
        for application, controls in at_work.items():
            for control in controls:
                control.cancel()
            reader.stop_all(application)
        self.starter.interrupt()
