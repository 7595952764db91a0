"""Many tables in one run: choose them, compare several at a time on one engine, and give one answer.

The largest tables come first in one lane, the smallest first in the others: the nodes are kept busy, and no large table
is begun when everything else is done. Each table is a task of its own, so it has its own report and can be taken up.
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
from trueup.task.shared import Shared
from trueup.task.steering import is_gentle
from trueup.verbs.diff import run as one
from trueup.verbs.diff.tables import Candidate, Choice, choose_tables

# Tables at once: their planning and waiting is what overlaps, for they share the slots of one engine.
_LANES = 4
# A lane has a session to hold the snapshot with, and one for the watch.
_SESSIONS_OF_A_LANE = 2
# When a node was lost for so many tables in a row, the others are not tried.
_LOST = 3


@dataclass(frozen=True)
class ManyRequest:
    """Which tables, and how each of them is compared."""

    patterns: Patterns
    # As for one table, of no name.
    each: TableRequest

    def context(self) -> dict[str, Any]:
        """The request as the task store keeps it."""
        return {
            **self.each.context(),
            "tables": [pattern.text for pattern in self.patterns.take],
            "skip": [pattern.text for pattern in self.patterns.skip],
        }


def many_again(task: Task, config: Config) -> ManyRequest:
    """The request of an earlier task."""
    context = task.task_context
    patterns = parse_patterns(tables=context["tables"], skip=context["skip"])
    return ManyRequest(patterns, request_again(context, task.cluster_name, config))


def run_many(request: ManyRequest, *, store: TaskStore, progress: Progress | None = None) -> ManyResult:
    """Compare all tables that fit; the task store keeps the request, the answer, and a task for each table."""
    kind = "TABLES_CHECK" if request.each.digests_only else "TABLES_DIFF"
    with open_task(
        store,
        kind,
        cluster=request.each.cluster,
        table=str(request.patterns),
        context=request.context(),
        progress=progress,
        on_interrupt=one.resume_with(request.each),
    ) as opened:
        return _work_on(request, opened, {})


def resume_many(request: ManyRequest, task: Task, *, store: TaskStore, progress: Progress | None = None) -> ManyResult:
    """Go on with a run that was stopped or killed: tables that are finished are not looked at again."""
    kind = "TABLE_CHECK" if request.each.digests_only else "TABLE_DIFF"
    # The newest come first, and the last one of a table stands.
    parts = [part for part in store.list(limit=-1, task_type=kind) if part.task_context.get("part_of") == task.task_id]
    earlier = {str(part.task_context["qualified_table"]): part for part in reversed(parts)}
    with reopen_task(store, task, progress=progress, on_interrupt=one.resume_with(request.each)) as opened:
        return _work_on(request, opened, earlier)


def _work_on(request: ManyRequest, task: OpenTask, earlier: Mapping[str, Task]) -> ManyResult:
    result = _compare(request, task.task, earlier, task.store, task.progress)
    failed = result.verdict == "INCOMPLETE"
    task.finish(summary_of(result), failed=failed, error="; ".join(result.incomplete[:10]), report=result.report)
    return result


def _compare(
    request: ManyRequest, task: Task, earlier: Mapping[str, Task], store: TaskStore, progress: Progress
) -> ManyResult:
    begun = time.monotonic()
    choice, lanes = _plan(request, task)
    folder = _folder(request.each, task)
    each = replace(
        request.each,
        part_of=task.task_id,
        settings=replace(request.each.settings, report_dir=str(folder or request.each.settings.report_dir)),
    )
    shared = Shared(one.new_starter(_within(request.each, lanes)), task.task_id)
    try:
        run = _Run(each, store, shared, progress, deque(choice.tables), earlier)
        progress.stage("tables", len(choice.tables))
        _work(run, lanes)
    finally:
        shared.starter.close()
    if len(run.outcomes) != len(choice.tables):
        raise EngineError("not every table has an outcome", cure="this is a defect of trueup: please report it")
    mode: Literal["diff", "check"] = "check" if each.digests_only else "diff"
    outcomes = tuple(sorted(run.outcomes, key=lambda outcome: outcome.table))
    seconds = round(time.monotonic() - begun, 3)
    result = ManyResult(mode, each.node_names, outcomes, choice.skipped, seconds, task.task_id, choice.remarks)
    return write_many(folder, result, html="html" in each.settings.outputs) if folder else result


def _plan(request: ManyRequest, task: Task) -> tuple[Choice, int]:
    """The tables, and how many of them at once."""
    with open_nodes(request.each.nodes, f"trueup tables {task.task_id[:8]}") as controls:
        return choose_tables(controls, request.patterns), _lanes(request.each, check_free(controls, 1))


def _lanes(request: TableRequest, free: int) -> int:
    """Tables at once, within the connections that are allowed and those that the nodes have left."""
    settings = request.settings
    if is_gentle(settings):
        return 1
    allowed = settings.max_connections // (2 * _SESSIONS_OF_A_LANE) if settings.max_connections else _LANES
    slots = Share(settings.concurrency_factor, settings.max_connections, by_hand=request.spark.slots).of(cores_here())
    return max(1, min(_LANES, allowed, (free - slots) // _SESSIONS_OF_A_LANE))


def _within(request: TableRequest, lanes: int) -> TableRequest:
    """The request with the connections that the engine may have: further lanes take some of them."""
    settings = request.settings
    if not settings.max_connections:
        return request
    left = settings.max_connections - _SESSIONS_OF_A_LANE * (lanes - 1)
    return replace(request, settings=replace(settings, max_connections=left))


def _folder(request: TableRequest, task: Task) -> Path | None:
    """A folder for the reports of all tables; a check writes none."""
    if request.digests_only:
        return None
    folder = Path(request.settings.report_dir or ".").absolute() / f"tables_diffs-{task.task_id[:8]}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make the folder {folder}: {error.strerror}", cure=cure_for(error)) from None
    return folder


@dataclass
class _Run:
    """What the lanes work on together."""

    request: TableRequest
    store: TaskStore
    shared: Shared
    progress: Progress
    waiting: deque[Candidate]
    earlier: Mapping[str, Task]
    outcomes: list[TableOutcome] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    lost: int = 0


def _work(run: _Run, lanes: int) -> None:
    """Compare all tables; whatever ends this early ends the lanes, too."""
    takes: list[Callable[[], Candidate]] = [run.waiting.popleft] + [run.waiting.pop] * (lanes - 1)
    threads = ThreadPoolExecutor(lanes, thread_name_prefix="trueup-table")
    futures = [threads.submit(copy_context().run, _lane, run, take) for take in takes]
    try:
        wait(futures, return_when=FIRST_EXCEPTION)
        for future in futures:
            future.result()
    except BaseException:
        run.shared.stop()
        raise
    finally:
        threads.shutdown(wait=True, cancel_futures=True)


def _lane(run: _Run, take: Callable[[], Candidate]) -> None:
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
    """One table; what cannot be compared is an outcome too, and the others go on."""
    missing = tuple(name for name in run.request.node_names if name not in candidate.nodes)
    if len(candidate.nodes) < 2:
        return TableOutcome(candidate.table, "DIFFER", missing)
    if run.lost >= _LOST:
        return TableOutcome(candidate.table, "INCOMPLETE", missing, reason="not tried: a node was lost")
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
    return Interrupted("stopped from outside", cure=f"--resume {run.request.part_of[:8]} goes on")


def _reason(error: Exception) -> str:
    if isinstance(error, TrueupError):
        return "; ".join(str(error).splitlines())
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{place.filename.rpartition('/')[2]}:{place.lineno}"
    return f"unexpected {type(error).__name__} at {where}, a defect of trueup: {mask(str(error))}"


def _compared(run: _Run, request: TableRequest, before: Task | None) -> DiffResult:
    progress = _OfTable(run.progress, request.table, run.lock)
    common: dict[str, Any] = {"store": run.store, "progress": progress, "shared": run.shared}
    if before is not None and before.task_status != COMPLETED and _nodes_of(before) == request.node_names:
        return one.resume(request, before, **common)
    return one.run(request, **common)


def _known(table: str, task: Task, missing: tuple[str, ...]) -> TableOutcome:
    """How a table came out in an earlier try."""
    found = task.task_context["diff_summary"]
    page = Path(task.diff_file_path).with_suffix(".html") if task.diff_file_path else None
    blocks = found["mismatched_ranges_count"] if task.task_type == "TABLE_CHECK" else 0
    return TableOutcome(
        table,
        "DIFFER" if missing and found["verdict"] == "MATCH" else found["verdict"],
        missing,
        rows_checked=found["total_rows_checked"],
        differences=blocks or sum(found["diff_rows_count"].values()),
        seconds=found["time_taken"],
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


class _OfTable:
    """The progress of one table among many: its rows are counted, what it says has its name before it."""

    def __init__(self, whole: Progress, table: str, lock: threading.RLock) -> None:
        self._whole = whole
        self._table = table
        self._lock = lock

    def stage(self, name: str, total: int) -> None:
        """Stages of one table are not shown."""

    def advance(self, steps: int = 1, *, rows: int = 0, more: int = 0, stage: str = "") -> None:
        """Count the rows, and give a sign of life."""
        with self._lock:
            self._whole.advance(0, rows=rows, stage="tables")

    def say(self, text: str) -> None:
        """With the table's name."""
        with self._lock:
            self._whole.say(f"{self._table}: {text}")

    def wait(self, reason: str) -> None:
        """With the table's name."""
        with self._lock:
            self._whole.wait(f"{self._table}: {reason}" if reason else "")

    def close(self) -> None:
        """Whoever opened the whole closes it."""
