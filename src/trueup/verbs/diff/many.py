"""Compare many tables in one run: choose them, compare several at a time on one engine, return one result.

One thread compares the largest tables first, the others the smallest first, so that no large table is started last.
Each table is a task of its own, with its own report, and can be resumed.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from trueup.config.model import Config
from trueup.config.secrets import mask
from trueup.config.settings import DiffSettings
from trueup.db.patterns import Patterns, parse_patterns
from trueup.engine.progress import Progress
from trueup.engine.slots import Share, cores_here
from trueup.errors import EngineError, Interrupted, NodeError, StoreError, TrueupError
from trueup.report.json_file import cure_for
from trueup.report.many import summary_of, write_many
from trueup.report.model import DiffResult, ManyResult, TableOutcome
from trueup.rows.request import TableRequest, request_again
from trueup.store import COMPLETED, Task, TaskStore
from trueup.task.connections import check_free
from trueup.task.nodes import open_nodes
from trueup.task.open import OpenTask, open_task, reopen_task
from trueup.task.shared import Shared, open_engine
from trueup.task.steering import is_gentle
from trueup.verbs.diff import run as one
from trueup.verbs.diff.tables import Candidate, Choice, choose_tables

# Tables at once. They share the slots of one engine, so only their planning and waiting overlaps.
_THREADS = 4
# Connections per thread and node: one holds the snapshot, one is for the watch.
_SESSIONS_PER_THREAD = 2
# After this many tables in a row that failed because a node was lost, the others are not compared.
_LOST = 3


@dataclass(frozen=True)
class ManyRequest:
    """The tables, and how each of them is compared."""

    patterns: Patterns
    # The request for one table, without its name.
    table: TableRequest

    def context(self) -> dict[str, Any]:
        """Return the request as the task store keeps it."""
        return {
            **self.table.context(),
            "tables": [pattern.text for pattern in self.patterns.take],
            "skip": [pattern.text for pattern in self.patterns.skip],
        }


def many_again(task: Task, config: Config) -> ManyRequest:
    """Return the request of an earlier task."""
    context = task.task_context
    patterns = parse_patterns(tables=context["tables"], skip=context["skip"])
    return ManyRequest(patterns, request_again(context, task.cluster_name, config))


def run_many(request: ManyRequest, *, store: TaskStore, progress: Progress | None = None) -> ManyResult:
    """Compare all tables that match, each as a task of its own."""
    kind = "TABLES_CHECK" if request.table.digests_only else "TABLES_DIFF"
    with open_task(
        store,
        kind,
        cluster=request.table.cluster,
        table=str(request.patterns),
        context=request.context(),
        progress=progress,
        on_interrupt=one.how_to_resume(request.table),
    ) as opened:
        return _run(request, opened, {})


def resume_many(request: ManyRequest, task: Task, *, store: TaskStore, progress: Progress | None = None) -> ManyResult:
    """Continue a run that was interrupted or failed, without the tables that are finished."""
    kind = "TABLE_CHECK" if request.table.digests_only else "TABLE_DIFF"
    # The newest task comes first; of several tasks of a table the newest counts.
    parts = [part for part in store.list(limit=-1, task_type=kind) if part.task_context.get("part_of") == task.task_id]
    earlier = {str(part.task_context["qualified_table"]): part for part in reversed(parts)}
    with reopen_task(store, task, progress=progress, on_interrupt=one.how_to_resume(request.table)) as opened:
        return _run(request, opened, earlier)


def _run(request: ManyRequest, task: OpenTask, earlier: Mapping[str, Task]) -> ManyResult:
    result = _compare(request, task.task, earlier, task.store, task.progress)
    failed = result.verdict == "INCOMPLETE"
    task.finish(summary_of(result), failed=failed, error="; ".join(result.incomplete[:10]), report=result.report)
    return result


def _compare(
    request: ManyRequest, task: Task, earlier: Mapping[str, Task], store: TaskStore, progress: Progress
) -> ManyResult:
    started = time.monotonic()
    choice, threads = _plan(request, task)
    folder = _folder(request.table, task)
    report_dir = str(folder or request.table.settings.report_dir)
    table = replace(
        request.table, part_of=task.task_id, settings=replace(request.table.settings, report_dir=report_dir)
    )
    with open_engine(_within(table.settings, threads), table.spark, task.task_id) as shared:
        run = _Run(table, store, shared, progress, deque(choice.tables), earlier)
        progress.stage("tables", len(choice.tables))
        _compare_all(run, threads)
    if len(run.outcomes) != len(choice.tables):
        raise EngineError("some tables have no outcome", cure="this is a defect of trueup: report it")
    mode: Literal["diff", "check"] = "check" if table.digests_only else "diff"
    outcomes = tuple(sorted(run.outcomes, key=lambda outcome: outcome.table))
    seconds = round(time.monotonic() - started, 3)
    result = ManyResult(mode, table.node_names, outcomes, choice.skipped, seconds, task.task_id, choice.remarks)
    return write_many(folder, result, html="html" in table.settings.outputs) if folder else result


def _plan(request: ManyRequest, task: Task) -> tuple[Choice, int]:
    """Return the tables, and the number of threads that compare them."""
    with open_nodes(request.table.nodes, f"trueup tables {task.task_id[:8]}") as controls:
        return choose_tables(controls, request.patterns), _threads(request.table, check_free(controls, 1))


def _threads(request: TableRequest, free: int) -> int:
    """Return the number of threads, within the allowed and the free connections of the nodes."""
    settings = request.settings
    if is_gentle(settings):
        return 1
    allowed = settings.max_connections // (2 * _SESSIONS_PER_THREAD) if settings.max_connections else _THREADS
    slots = Share(settings.concurrency_factor, settings.max_connections, fixed=request.spark.slots).of(cores_here())
    return max(1, min(_THREADS, allowed, (free - slots) // _SESSIONS_PER_THREAD))


def _within(settings: DiffSettings, threads: int) -> DiffSettings:
    """Return the settings with the connections that the engine may use: further threads take some of them."""
    if not settings.max_connections:
        return settings
    return replace(settings, max_connections=settings.max_connections - _SESSIONS_PER_THREAD * (threads - 1))


def _folder(request: TableRequest, task: Task) -> Path | None:
    """Create the folder for the reports of all tables; a check writes none."""
    if request.digests_only:
        return None
    folder = Path(request.settings.report_dir or ".").absolute() / f"tables_diffs-{task.task_id[:8]}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot create the folder {folder}: {error.strerror}", cure=cure_for(error)) from None
    return folder


@dataclass
class _Run:
    """What the threads share."""

    request: TableRequest
    store: TaskStore
    shared: Shared
    progress: Progress
    waiting: deque[Candidate]
    earlier: Mapping[str, Task]
    outcomes: list[TableOutcome] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    lost: int = 0


def _compare_all(run: _Run, count: int) -> None:
    """Compare all tables; an error in one thread ends the others too."""
    takes: list[Callable[[], Candidate]] = [run.waiting.popleft] + [run.waiting.pop] * (count - 1)
    threads = ThreadPoolExecutor(count, thread_name_prefix="trueup-table")
    futures = [threads.submit(copy_context().run, _compare_waiting, run, take) for take in takes]
    try:
        wait(futures, return_when=FIRST_EXCEPTION)
        for future in futures:
            future.result()
    except BaseException:
        run.shared.stop()
        raise
    finally:
        threads.shutdown(wait=True, cancel_futures=True)


def _compare_waiting(run: _Run, take: Callable[[], Candidate]) -> None:
    while True:
        try:
            candidate = take()
        except IndexError:
            return
        if run.shared.is_over(run.store):
            raise _stopped(run)
        outcome = _outcome(run, candidate)
        with run.lock:
            run.outcomes.append(outcome)
            run.progress.advance(stage="tables")
            if outcome.verdict != "MATCH":
                run.progress.say(f"{outcome.table}: {outcome.verdict}")


def _outcome(run: _Run, candidate: Candidate) -> TableOutcome:
    """Compare one table; a table that cannot be compared is INCOMPLETE, and does not stop the others."""
    missing = tuple(name for name in run.request.node_names if name not in candidate.nodes)
    if len(candidate.nodes) < 2:
        return TableOutcome(candidate.table, "DIFFER", missing)
    if run.lost >= _LOST:
        return TableOutcome(candidate.table, "INCOMPLETE", missing, reason="not compared: a node was lost")
    before = run.earlier.get(candidate.table)
    if before is not None and before.task_status == COMPLETED and _nodes_of(before) == candidate.nodes:
        return _known(candidate.table, before, missing)
    nodes = tuple(node for node in run.request.nodes if node.name in candidate.nodes)
    request = replace(run.request, table=candidate.table, nodes=nodes)
    try:
        result = _compared(run, request, before)
    except Exception as error:
        if run.shared.is_over(run.store):
            raise _stopped(run) from None
        run.lost = run.lost + 1 if isinstance(error, NodeError) else 0
        return TableOutcome(candidate.table, "INCOMPLETE", missing, reason=_reason(error))
    run.lost = 0
    verdict = "DIFFER" if missing and result.verdict == "MATCH" else result.verdict
    return TableOutcome(
        candidate.table,
        verdict,
        missing,
        rows_checked=result.rows_checked,
        differences=_differences(result),
        seconds=result.seconds,
        reason="; ".join(result.incomplete),
        task_id=result.task_id,
        report=result.report,
        page=result.page,
    )


def _stopped(run: _Run) -> Interrupted:
    return Interrupted("stopped with `trueup tasks stop`", cure=f"continue with --resume {run.request.part_of[:8]}")


def _reason(error: Exception) -> str:
    if isinstance(error, TrueupError):
        return "; ".join(str(error).splitlines())
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{place.filename.rpartition('/')[2]}:{place.lineno}"
    return f"unexpected {type(error).__name__} at {where}, a defect of trueup: {mask(str(error))}"


def _compared(run: _Run, request: TableRequest, before: Task | None) -> DiffResult:
    progress = _TableProgress(run.progress, request.table, run.lock)
    if before is not None and before.task_status != COMPLETED and _nodes_of(before) == request.node_names:
        return one.resume(request, before, store=run.store, progress=progress, shared=run.shared)
    return one.run(request, store=run.store, progress=progress, shared=run.shared)


def _known(table: str, task: Task, missing: tuple[str, ...]) -> TableOutcome:
    """Return the outcome of a table that an earlier attempt has finished."""
    summary = task.task_context["diff_summary"]
    page = Path(task.diff_file_path).with_suffix(".html") if task.diff_file_path else None
    blocks = summary["mismatched_ranges_count"] if task.task_type == "TABLE_CHECK" else 0
    return TableOutcome(
        table,
        "DIFFER" if missing and summary["verdict"] == "MATCH" else summary["verdict"],
        missing,
        rows_checked=summary["total_rows_checked"],
        differences=blocks or sum(summary["diff_rows_count"].values()),
        seconds=summary["time_taken"],
        task_id=task.task_id,
        report=task.diff_file_path,
        page=str(page) if page and page.exists() else "",
    )


def _nodes_of(task: Task) -> tuple[str, ...]:
    return tuple(str(task.task_context["nodes"]).split(","))


def _differences(result: DiffResult) -> int:
    if result.mode == "check":
        return result.mismatched_blocks
    return sum(counts.total for counts in result.pairs.values())


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
