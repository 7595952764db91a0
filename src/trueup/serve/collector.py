"""Threads that read the sources at intervals: one per source, so that one that hangs does not stop the others.

Pages read only what was seen last, with its age: no page view opens a session on a node.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from trueup.config.model import Config
from trueup.config.secrets import mask
from trueup.engine.failures import error_of
from trueup.errors import TrueupError
from trueup.serve import sources
from trueup.serve.model import NodeSeen, Part, Seen, Trend

_log = logging.getLogger(__name__)
_DOCTOR_SECONDS = 600.0
_SCHEDULE_SECONDS = 15.0
_STOP_SECONDS = 5.0
# A read that takes longer has no result: what is shown is old.
LATE_SECONDS = 60.0


@dataclass(frozen=True)
class Scope:
    """What the collector reads."""

    config: Config
    stores: tuple[Path, ...]
    interval: float = 5.0
    # The commands that jobs of the schedule may have; empty: the schedule is not read.
    verbs: tuple[str, ...] = ()
    with_doctor: bool = True
    # Only these nodes; None: all of PostgreSQL.
    nodes: tuple[str, ...] | None = None


class Collector:
    """Reads all sources until it is stopped; `seen` is what they returned last."""

    def __init__(self, scope: Scope, on_change: Callable[[Seen], None] = lambda seen: None) -> None:
        self.scope = scope
        self._on_change = on_change
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._trends: dict[tuple[str, ...], Trend] = {}
        # Reads that have not ended: since when (of a clock that never jumps), and after how many seconds they are late.
        self._reads: dict[tuple[str, str, Any], tuple[float, float]] = {}
        nodes = sources.node_names(scope.config, scope.nodes)
        self._has_schedule = bool(scope.verbs and scope.config.path is not None and scope.stores)
        self.seen = Seen(
            stores={path: Part(str(path)) for path in scope.stores},
            nodes={name: Part(name) for name in nodes},
            syncs=Part("syncs" if nodes else ""),
            schedule=Part("schedule" if self._has_schedule else ""),
            doctor=Part("doctor" if scope.with_doctor else ""),
        )

    def start(self) -> None:
        """Start the threads."""
        self._start("late", self._watch)
        scope, config = self.scope, self.scope.config
        for path in scope.stores:
            self._every(scope.interval, f"store {path}", partial(sources.read_store, path), "stores", path)
        for name in self.seen.nodes:
            self._every(scope.interval, f"node {name}", partial(self._read_node, name), "nodes", name)
        if self.seen.nodes:
            self._every(scope.interval, "syncs", lambda: sources.read_syncs(config, self.seen), "syncs")
        if self._has_schedule:
            read_jobs = partial(sources.read_schedule, config, scope.verbs, scope.stores[0])
            self._every(max(_SCHEDULE_SECONDS, scope.interval), "schedule", read_jobs, "schedule")
        if scope.with_doctor:
            self._every(_DOCTOR_SECONDS, "doctor", partial(sources.read_doctor, config, scope.stores), "doctor")

    def stop(self) -> None:
        """Stop the threads; one that waits for a server ends later, and does not keep the process alive."""
        self._stopping.set()
        deadline = time.monotonic() + _STOP_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def trends(self) -> Mapping[tuple[str, ...], Sequence[tuple[float, float]]]:
        """Return the last values of lags and backlogs, by kind and name."""
        with self._lock:
            return {key: trend.values() for key, trend in self._trends.items()}

    def _read_node(self, name: str) -> NodeSeen:
        return sources.read_node(self.scope.config.nodes[name], self.seen.nodes[name].value)

    def _every(self, seconds: float, name: str, read: Callable[[], Any], field: str, key: Any = None) -> None:
        # Sources are not read in step. A generator of its own: the program may have seeded the shared one.
        jitter = random.Random()

        def loop() -> None:
            while not self._stopping.is_set():
                began = time.time()
                self._reads[name, field, key] = time.monotonic(), max(LATE_SECONDS, seconds)
                self._refresh(name, read, field, key)
                # A source that is slow is read less often.
                took = time.time() - began
                self._stopping.wait(max(seconds, took) * jitter.uniform(0.95, 1.05))

        self._start(name, loop)

    def _start(self, name: str, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=f"trueup {name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _watch(self) -> None:
        """Mark sources whose read does not end: a server that hangs accepts connections and says nothing."""
        while not self._stopping.wait(min(1.0, LATE_SECONDS / 4)):
            for (name, field, key), (since, limit) in list(self._reads.items()):
                if time.monotonic() - since > limit:
                    error = TrueupError(f"no answer for more than {limit:g} s", cure="check the server and the network")
                    self._keep(name, None, error, field, key, is_late=True)

    def _refresh(self, name: str, read: Callable[[], Any], field: str, key: Any) -> None:
        try:
            value, failure = read(), None
        except Exception as error:
            value, failure = None, error_of(error)
        self._keep(name, value, failure, field, key)

    def _keep(
        self, name: str, value: Any, failure: TrueupError | None, field: str, key: Any, *, is_late: bool = False
    ) -> None:
        with self._lock:
            if is_late and (name, field, key) not in self._reads:
                # It has ended meanwhile.
                return
            if not is_late:
                self._reads.pop((name, field, key), None)
            before: Part[Any] = getattr(self.seen, field) if key is None else getattr(self.seen, field)[key]
            part = self._part(before, value, failure)
            whole: Any = part if key is None else {**getattr(self.seen, field), key: part}
            has_changed = (part.value, part.error) != (before.value, before.error)
            version = self.seen.version + has_changed
            self.seen = replace(self.seen, version=version, **{field: whole})
            if isinstance(part.value, NodeSeen) and not part.error:
                self._note_node(part.seen_at, part.value)
            elif field == "syncs" and not part.error:
                self._note_syncs(part)
            seen = self.seen
        if part.error and part.error != before.error:
            _log.warning("%s: %s", name, part.error)
        elif before.error and not part.error:
            _log.info("%s: answers again", name)
        try:
            self._on_change(seen)
        except Exception:
            _log.exception("a change of %s could not be processed", name)

    def _part(self, before: Part[Any], value: Any, failure: TrueupError | None) -> Part[Any]:
        now = time.time()
        if failure is not None:
            return replace(before, tried_at=now, error=mask(str(failure)), cure=mask(failure.cure))
        return Part(before.name, value, now, now)

    def _note_node(self, at: float, node: NodeSeen) -> None:
        for validation in node.validations:
            status, place = validation.status, ("validation", node.node, validation.status.name)
            self._note((*place, "lag_seconds"), at, status.lag_seconds)
            self._note((*place, "lag_bytes"), at, status.lag_bytes)
            self._note((*place, "pending"), at, status.total("pending"))
            self._note((*place, "errors"), at, status.open_errors)
        for tube in node.tubes:
            place = ("tube", node.node, tube.name)
            self._note((*place, "backlog"), at, tube.backlog)
            self._note((*place, "rate"), at, tube.total("keys_per_second"))

    def _note_syncs(self, part: Part[Any]) -> None:
        for sync in part.value or ():
            waiting = sync.status.waiting if sync.status else None
            place = ("sync", sync.source, sync.target, sync.name)
            self._note((*place, "pending"), part.seen_at, waiting[1] if waiting else None)
            self._note((*place, "lag_seconds"), part.seen_at, waiting[2] if waiting else None)

    def _note(self, key: tuple[str, ...], at: float, value: float | None) -> None:
        self._trends.setdefault(key, Trend()).add(at, value)
