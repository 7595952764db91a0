"""One engine for one or more runs over tables, and one way to stop them all."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from trueup.config.settings import DiffSettings, SparkSettings
from trueup.db import reader
from trueup.db.snapshot import Control
from trueup.engine.choose import EngineStarter
from trueup.engine.work import Engine
from trueup.store import TaskStore
from trueup.task.connections import check_free
from trueup.task.steering import has_watch, is_gentle


class Shared:
    """The engine that runs share, and the sessions of the runs that use it now."""

    def __init__(self, starter: EngineStarter, parent: str = "") -> None:
        self.starter = starter
        # The task that the runs are parts of: a request to stop or pause it applies to them.
        self._parent = parent
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._free: dict[Engine, int] = {}
        self._at_work: dict[str, Sequence[Control]] = {}

    def engine(self, rows: int, controls: Sequence[Control]) -> Engine:
        """Return the engine for a table of this many rows; raise if the nodes have too few free connections."""
        engine = self.starter.get_with_hand_over(rows)
        with self._lock:
            # Counted once, before the first run: later the sessions of the runs themselves would be counted.
            if engine not in self._free:
                self._free[engine] = check_free(controls, engine.slots)
            engine.max_slots = self._free[engine]
        return engine

    def requested(self, store: TaskStore, task_id: str) -> str:
        """Return what is requested of a run: 'stop', 'pause' or ''."""
        if self._stopped.is_set():
            return "stop"
        return store.wanted(task_id) or (store.wanted(self._parent) if self._parent else "")

    @contextmanager
    def at_work(self, application: str, controls: Sequence[Control]) -> Iterator[None]:
        """Register the sessions of the block, so that `stop` cancels their queries."""
        with self._lock:
            self._at_work[application] = controls
        try:
            yield
        finally:
            with self._lock:
                del self._at_work[application]

    def is_over(self, store: TaskStore) -> bool:
        """Whether all runs are to end."""
        return self._stopped.is_set() or (bool(self._parent) and store.wanted(self._parent) == "stop")

    def stop(self) -> None:
        """End all runs: start no more tasks, and cancel the queries that are running."""
        self._stopped.set()
        with self._lock:
            at_work = dict(self._at_work)
        for application, controls in at_work.items():
            for control in controls:
                control.cancel()
            reader.stop_all(application)
        self.starter.interrupt()


@contextmanager
def open_engine(settings: DiffSettings, spark: SparkSettings, parent: str = "") -> Iterator[Shared]:
    """Start the engine of one or more runs; stop it at the end of the block."""
    if is_gentle(settings):
        # One small query at a time: Spark has no advantage, unless it was requested.
        spark = replace(spark, slots=1, engine="local" if spark.engine == "auto" else spark.engine)
    # One of the allowed connections per node is for the watch.
    connections = settings.max_connections - bool(settings.max_connections and has_watch(settings))
    starter = EngineStarter(spark, concurrency_factor=settings.concurrency_factor, max_connections=connections)
    try:
        yield Shared(starter, parent)
    finally:
        starter.close()
