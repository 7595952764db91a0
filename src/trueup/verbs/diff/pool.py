"""Compare several tables at a time on one engine; a table that cannot be compared does not stop the others."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from trueup.config.settings import DiffSettings
from trueup.db.snapshot import Control
from trueup.engine.failures import error_of
from trueup.engine.progress import Progress
from trueup.engine.slots import Share, cores_here
from trueup.engine.waits import wait_for
from trueup.errors import EngineError, Interrupted, NodeError
from trueup.report.model import AGREED, DiffResult, TableOutcome
from trueup.report.text import certified_lines, rows_of
from trueup.rows.request import TableRequest
from trueup.store import TaskStore
from trueup.task.connections import check_free
from trueup.task.shared import Shared
from trueup.task.steering import is_gentle

# Tables at once. They share the slots of one engine, so only their planning and waiting overlaps.
_THREADS = 4
# Connections per thread and node: one holds the snapshot, one is for the watch.
SESSIONS_PER_THREAD = 2
# After this many tables in a row that failed because a node was lost, the others are not compared.
_LOST = 3


class Waiting(Protocol):
    """A table that waits to be compared."""

    @property
    def table(self) -> str:
        """Its name."""
        ...

    @property
    def missing_on(self) -> tuple[str, ...]:
        """The nodes that do not have it."""
        ...


W = TypeVar("W", bound=Waiting)


@dataclass
class Pool(Generic[W]):
    """What the threads share. `compare` returns the outcome of one table; `stopped` is the error of a stopped run."""

    store: TaskStore
    shared: Shared
    progress: Progress
    compare: Callable[[W, Progress], TableOutcome]
    stopped: Callable[[], Interrupted]
    waiting: deque[W] = field(default_factory=deque)
    outcomes: list[TableOutcome] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    lost: int = 0

    def run(self, tables: Sequence[W], threads: int) -> tuple[TableOutcome, ...]:
        """Compare all tables, the first ones of the list in one thread and the last ones in the others.

        An error outside of the comparison of a table ends all threads.
        """
        self.waiting.extend(tables)
        self.progress.stage("tables", len(tables))
        takes: list[Callable[[], W]] = [self.waiting.popleft] + [self.waiting.pop] * (threads - 1)
        executor = ThreadPoolExecutor(threads, thread_name_prefix="trueup-table")
        futures = [executor.submit(copy_context().run, self._work, take) for take in takes]
        try:
            wait_for(futures, FIRST_EXCEPTION)
            for future in futures:
                future.result()
        except BaseException:
            self.shared.stop()
            raise
        finally:
            executor.shutdown(wait=True, cancel_futures=True)
        if len(self.outcomes) != len(tables):
            raise EngineError("some tables have no outcome", cure="this is a defect of trueup: report it")
        return tuple(sorted(self.outcomes, key=lambda outcome: outcome.table))

    def _work(self, take: Callable[[], W]) -> None:
        while True:
            try:
                table = take()
            except IndexError:
                return
            if self.shared.is_over(self.store):
                raise self.stopped()
            outcome = self._outcome(table)
            with self.lock:
                self.outcomes.append(outcome)
                self.progress.advance(stage="tables")
                if outcome.verdict not in AGREED:
                    self.progress.say(f"{outcome.table}: {outcome.verdict}")

    def _outcome(self, table: W) -> TableOutcome:
        if self.lost >= _LOST:
            return TableOutcome(table.table, "INCOMPLETE", table.missing_on, reason="not compared: a node was lost")
        try:
            outcome = self.compare(table, _TableProgress(self.progress, table.table, self.lock))
        except Exception as error:
            if self.shared.is_over(self.store):
                raise self.stopped() from None
            self.lost = self.lost + 1 if isinstance(error, NodeError) else 0
            return TableOutcome(table.table, "INCOMPLETE", table.missing_on, reason=_reason(error))
        self.lost = 0
        return outcome


def threads_for(request: TableRequest, controls: Sequence[Control]) -> int:
    """Return the number of threads, within the allowed and the free connections of the nodes."""
    free, settings = check_free(controls, 1), request.settings
    if is_gentle(settings):
        return 1
    allowed = settings.max_connections // (2 * SESSIONS_PER_THREAD) if settings.max_connections else _THREADS
    slots = Share(settings.concurrency_factor, settings.max_connections, fixed=request.spark.slots).of(cores_here())
    return max(1, min(_THREADS, allowed, (free - slots) // SESSIONS_PER_THREAD))


def connections_left(settings: DiffSettings, threads: int) -> int:
    """Return the connections that the engine may use of the allowed ones (0: no limit); threads take some of them."""
    taken = SESSIONS_PER_THREAD * (threads - 1)
    return settings.max_connections - taken if settings.max_connections else 0


def outcome_of(result: DiffResult, missing_on: tuple[str, ...]) -> TableOutcome:
    """Return the outcome of a table that was compared."""
    differs = missing_on and result.verdict in AGREED
    return TableOutcome(
        result.table,
        "DIFFER" if differs else result.verdict,
        missing_on,
        rows_checked=result.rows_checked,
        differences=_differences(result),
        seconds=result.seconds,
        reason="; ".join(result.incomplete),
        task_id=result.task_id,
        report=result.report,
        page=result.page,
        accepted=sum(counts.accepted for counts in result.pairs.values()),
        certificate="; ".join(certified_lines(result.certified)),
        part="; ".join(result.extent.lines()),
        is_empty=result.verdict == "MATCH" and not rows_of(result.rows_checked, result.since_proof),
        earlier=result.earlier,
    )


def _differences(result: DiffResult) -> int:
    if result.mode == "check":
        return result.mismatched_blocks
    return sum(counts.total for counts in result.pairs.values())


def _reason(error: Exception) -> str:
    return "; ".join(str(error_of(error)).splitlines())


class _TableProgress:
    """The progress of one table among many: its rows are counted, its messages are prefixed with its name."""

    def __init__(self, progress: Progress, table: str, lock: threading.RLock) -> None:
        self._progress = progress
        self._table = table
        self._lock = lock

    def stage(self, name: str, total: int) -> None:
        """Do nothing: stages of one table are not shown."""

    def advance(self, steps: int = 1, *, rows: int = 0, more: int = 0, stage: str = "") -> None:
        """Count the rows."""
        with self._lock:
            self._progress.advance(0, rows=rows, stage="tables")

    def say(self, text: str) -> None:
        """Show a message with the table's name."""
        with self._lock:
            self._progress.say(f"{self._table}: {text}")

    def wait(self, reason: str) -> None:
        """Show the reason with the table's name."""
        with self._lock:
            self._progress.wait(f"{self._table}: {reason}" if reason else "")

    def close(self) -> None:
        """Do nothing: the progress of the run is closed by its owner."""
