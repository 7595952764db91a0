"""Which engine: threads of this process for small tables, Spark for the rest or when a cluster is configured."""

from __future__ import annotations

import math
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from trueup.engine.local import LocalEngine
from trueup.engine.work import Engine

if TYPE_CHECKING:
    from trueup.config.model import SparkSettings


def slots_for(concurrency_factor: float, max_connections: int) -> int:
    """How many tasks at once: a share of the cores, at least one, within the connections a node may get."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    slots = max(1, math.floor(cores * concurrency_factor + 0.5))
    # One connection of each node is the driver's.
    return min(slots, max_connections - 1) if max_connections else slots


def wants_spark(settings: SparkSettings, rows: int) -> bool:
    """Whether this much work is for Spark."""
    if settings.engine != "auto":
        return settings.engine == "spark"
    return bool(settings.master or settings.remote) or rows >= settings.local_rows


class EngineStarter:
    """Starts the engine; Spark in the background, while the driver plans."""

    def __init__(self, settings: SparkSettings, slots: int) -> None:
        self._settings = settings
        self._slots = slots
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="trueup-engine")
        self._spark: Future[Engine] | None = None
        self._local: Engine | None = None
        if wants_spark(settings, rows=0):
            self._begin()

    def get(self, rows: int) -> Engine:
        """The engine for this many rows, ready."""
        if self._spark is None:
            if not wants_spark(self._settings, rows):
                self._local = LocalEngine(self._slots)
                return self._local
            self._begin()
        assert self._spark is not None
        return self._spark.result()

    def close(self) -> None:
        """Stop the engine, also a Spark that was begun and never asked for."""
        self._threads.shutdown(wait=True)
        if self._local is not None:
            self._local.close()
        if self._spark is not None and self._spark.exception() is None:
            self._spark.result().close()

    def _begin(self) -> None:
        self._spark = self._threads.submit(self._start)

    def _start(self) -> Engine:
        from trueup.engine.session import existing_session, start_session
        from trueup.engine.spark import SparkEngine

        settings = self._settings
        if not (settings.master or settings.remote) and (session := existing_session()) is not None:
            return SparkEngine(session, self._slots, owned=False)
        session = start_session(slots=self._slots, master=settings.master, remote=settings.remote, conf=settings.conf)
        return SparkEngine(session, self._slots, owned=True)
