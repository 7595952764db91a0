"""The diff from end to end: connect, check, cut into blocks, hash, split, compare, re-check, report.

This is the whole path on one screen; each step is a module of this folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial

from trueup.config.settings import DiffSettings, SparkSettings
from trueup.db.names import parse_table_name
from trueup.db.node import error_from_server
from trueup.db.snapshot import Control
from trueup.db.watch import Watch
from trueup.engine.choose import EngineStarter
from trueup.engine.progress import Progress
from trueup.engine.work import Engine
from trueup.errors import ConfigError
from trueup.report.model import DiffResult
from trueup.rows.comparable import check, check_key_values
from trueup.rows.request import TableRequest
from trueup.store import Task, TaskStore
from trueup.task.compare.model import Ranges
from trueup.task.compare.recheck import recheck
from trueup.task.compare.result import Ending, conclude, summary_fields
from trueup.task.compare.state import State, new_state
from trueup.task.job import Job, job_of
from trueup.task.nodes import open_nodes
from trueup.task.open import OpenTask, open_task, reopen_task
from trueup.task.shared import Shared
from trueup.task.steering import Steering, is_gentle
from trueup.task.together import together
from trueup.verbs.diff.again import rehash
from trueup.verbs.diff.collect import compare_blocks, compare_multisets, compare_pages
from trueup.verbs.diff.journal import Before, Journal, Plan, journal_path, read_journal, tidy
from trueup.verbs.diff.keyless import bits_for, scan_parts
from trueup.verbs.diff.physical import is_scattered
from trueup.verbs.diff.ranges import plan_ranges
from trueup.verbs.diff.resume import same_table, take_up

# Seconds between two looks at the nodes, and before the first one.
_WATCH, _WATCH_GENTLE = 5.0, 1.0


def run(
    request: TableRequest, *, store: TaskStore, progress: Progress | None = None, shared: Shared | None = None
) -> DiffResult:
    """Compare one table on all nodes of the request; the task store keeps the request and the answer.

    `shared` is what tables have in common that are compared at the same time.
    """
    schema, table = (part.spellings()[0] for part in parse_table_name(request.table))
    tidy(store.folder())
    with open_task(
        store,
        "TABLE_CHECK" if request.digests_only else "TABLE_DIFF",
        cluster=request.cluster,
        schema=schema,
        table=table,
        context=request.context(),
        progress=progress,
        on_interrupt=resume_with(request),
    ) as opened:
        return _work(request, opened, None, shared)


def resume(
    request: TableRequest,
    task: Task,
    *,
    store: TaskStore,
    progress: Progress | None = None,
    shared: Shared | None = None,
) -> DiffResult:
    """Go on with a task that was stopped or killed: blocks that it has finished are not looked at again."""
    before = read_journal(journal_path(store.folder(), task.task_id))
    with reopen_task(store, task, progress=progress, on_interrupt=resume_with(request)) as opened:
        return _work(request, opened, before, shared)


def resume_with(request: TableRequest) -> str:
    """Return the cure for an interrupted run."""
    verb = "check" if request.digests_only else "diff"
    return f"nothing was changed on any node; continue with: trueup {verb} --resume {{task}}"


def _work(request: TableRequest, task: OpenTask, before: Before | None, shared: Shared | None) -> DiffResult:
    ending, result = _compare(request, task, before, shared)
    task.finish(
        summary_fields(ending, result, datetime.now(timezone.utc)),
        failed=result.verdict == "INCOMPLETE",
        error="; ".join(result.incomplete),
        report=result.report,
    )
    if result.verdict != "INCOMPLETE":
        journal_path(task.store.folder(), task.task_id).unlink(missing_ok=True)
    return result


def _compare(
    request: TableRequest, task: OpenTask, before: Before | None, shared: Shared | None
) -> tuple[Ending, DiffResult]:
    started = datetime.now(timezone.utc)
    settings = request.settings
    store, progress = task.store, task.progress
    application = f"trueup {'check' if request.digests_only else 'diff'} {task.short_id}"
    with ExitStack() as stack:
        if shared is None:
            shared = Shared(new_starter(request))
            stack.callback(shared.starter.close)
        controls = stack.enter_context(open_nodes(request.nodes, application))
        stack.enter_context(shared.at_work(application, controls))
        checked = check(controls, request)
        spec = checked.spec
        positions = together(controls, lambda it: it.begin(spec.schema, spec.table, export=settings.snapshot))
        at_snapshot = time.monotonic()
        check_key_values(controls, spec, checked.nullable)
        if before is not None:
            # The same seed: what was found before speaks of hashes made with it.
            spec = same_table(before, spec, progress)
        ranges = before.plan.ranges if before else plan_ranges(controls, spec, settings.block_size, _unit(request))
        job = job_of(settings, spec, controls, application, digests_only=request.digests_only)
        if not settings.snapshot:
            for control in controls:
                control.end()
        state = new_state(request, None)
        stack.callback(lambda: state.suspects.close())
        state.steering = _steering(
            request, task.task, partial(shared.wanted, store, task.task_id), application, progress, stack
        )
        if not spec.is_keyless:
            # A keyless table is one sum over all rows of a snapshot: it cannot be taken up in another one.
            state.journal = Journal(journal_path(store.folder(), task.task_id), Plan(spec, ranges), before, positions)
            stack.callback(state.journal.close)
        engine = shared.engine(max(ranges.estimates.values()), controls)
        _look(engine, job, ranges, before, state, controls, request, progress)
        # The re-check looks at the present: from here on nobody who wants to alter the table has to wait for us.
        _let_go(controls, state)
        # Without snapshots, what was seen last is as old as the end of the look.
        seen = at_snapshot if settings.snapshot else time.monotonic()
        _look_again(engine, job, state, controls, request, seen, progress)
        earlier = before.positions if before else ()
        ending = Ending(
            request, spec, ranges, positions, state, engine.name, task.task_id, started, checked.remarks, earlier
        )
        return ending, conclude(ending)


def _unit(request: TableRequest) -> int:
    """Rows of the parts that a block is hashed in, so that what differs can be looked at again in little time."""
    settings = request.settings
    return settings.block_size if is_gentle(settings) else settings.compare_unit_size


def new_starter(request: TableRequest) -> EngineStarter:
    """Begins to start the engine of a run."""
    settings = request.settings
    return EngineStarter(
        _spark(request), concurrency_factor=settings.concurrency_factor, max_connections=_for_tasks(settings)
    )


def _for_tasks(settings: DiffSettings) -> int:
    """The connections to a node that are for the tasks and the driver; one more is the watch's, if there are enough."""
    return (
        settings.max_connections - 1 if _has_watch(settings) and settings.max_connections else settings.max_connections
    )


def _has_watch(settings: DiffSettings) -> bool:
    return settings.max_connections == 0 or settings.max_connections >= (3 if settings.gentle else 4)


def _spark(request: TableRequest) -> SparkSettings:
    """A gentle run is one small query at a time; unless it is asked for, Spark would only wait for it."""
    spark = request.spark
    if not is_gentle(request.settings):
        return spark
    return replace(spark, slots=1, engine="local" if spark.engine == "auto" else spark.engine)


def _steering(
    request: TableRequest,
    task: Task,
    wanted: Callable[[], str],
    application: str,
    progress: Progress,
    stack: ExitStack,
) -> Steering:
    """The gate between tasks; it knows what the nodes do from a watch, which needs a session of its own."""
    settings = request.settings
    watch = None
    if _has_watch(settings):
        gentle = settings.gentle
        watch = Watch(
            request.nodes,
            application=application,
            interval=_WATCH_GENTLE if gentle else _WATCH,
            delay=0.0 if gentle else _WATCH,
            report=progress.say,
        )
        stack.callback(watch.close)
        watch.start()
    elif settings.gentle:
        raise ConfigError(
            "--gentle needs a session to watch each node with", cure="allow 3 connections or more: --max-connections 3"
        )
    return Steering(settings, wanted, progress, watch, resume=f"--resume {task.task_id[:8]} goes on")


def _look(
    engine: Engine,
    job: Job,
    ranges: Ranges,
    before: Before | None,
    state: State,
    controls: Sequence[Control],
    request: TableRequest,
    progress: Progress,
) -> None:
    """The first look: everything is hashed, and what differs is found."""
    if job.spec.is_keyless:
        bits = bits_for(max(ranges.estimates.values()), job.unit)
        parts = scan_parts(
            controls, job.spec, bits, snapshot=request.settings.snapshot, gentle=is_gentle(request.settings)
        )
        compare_multisets(engine, job, parts, bits, state, controls, progress)
    else:
        done = take_up(before, state) if before else frozenset()
        whole = not done and request.settings.snapshot and not is_gentle(request.settings)
        if whole and is_scattered(controls, job.spec):
            compare_pages(engine, job, ranges, state, controls, progress)
            return
        blocks = {number: block for number, block in enumerate(ranges.blocks) if number not in done}
        compare_blocks(engine, job, blocks, state, controls, progress, ranges.inside)


def _let_go(controls: Sequence[Control], state: State) -> None:
    for control in controls:
        try:
            control.end()
        except Exception as error:
            state.stopped = state.stopped or error_from_server(error, control.node)


def _look_again(
    engine: Engine,
    job: Job,
    state: State,
    controls: Sequence[Control],
    request: TableRequest,
    seen: float,
    progress: Progress,
) -> None:
    """Later looks: what was in flight is told from what differs."""
    settings = request.settings
    if request.digests_only:
        rehash(
            engine,
            job,
            state,
            controls,
            rounds=settings.recheck,
            wait=settings.recheck_wait,
            seen=seen,
            progress=progress,
        )
    else:
        recheck(engine, job, state, request, seen, progress)
