"""Run `trueup diff` and `trueup check` over one table.

The path: connect to the nodes, check the table, take the snapshots, plan the blocks, hash and compare them, re-check
the differences, write the report.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from datetime import datetime, timezone
from functools import partial

from trueup.db.names import parse_table_name
from trueup.engine.progress import Progress
from trueup.report.model import DiffResult
from trueup.rows.comparable import check, check_key_values
from trueup.rows.request import TableRequest
from trueup.store import Task, TaskStore
from trueup.task.compare.recheck import recheck
from trueup.task.compare.result import Ending, conclude, record
from trueup.task.compare.state import Comparison, new_state
from trueup.task.job import job_of
from trueup.task.nodes import open_nodes
from trueup.task.open import OpenTask, open_task, reopen_task
from trueup.task.shared import Shared, open_engine
from trueup.task.steering import open_steering
from trueup.task.together import together
from trueup.verbs.diff.certify import begin_certificate
from trueup.verbs.diff.compare import compare_table, end_snapshots
from trueup.verbs.diff.journal import Before, open_journal, read_journal, remove_journal, remove_old_journals
from trueup.verbs.diff.ranges import plan_ranges
from trueup.verbs.diff.rehash import rehash
from trueup.verbs.diff.resume import Compare, no_other_table, or_by_value, same_table


def run(
    request: TableRequest,
    *,
    store: TaskStore,
    progress: Progress | None = None,
    shared: Shared | None = None,
    by_value: Compare | None = None,
) -> DiffResult:
    """Compare a table; `shared`: the engine of a run over many tables, `by_value`: compares views, and other types."""
    schema, table = (part.spellings()[0] for part in parse_table_name(request.table))
    remove_old_journals(store)
    with open_task(
        store,
        "TABLE_CHECK" if request.digests_only else "TABLE_DIFF",
        cluster=request.cluster,
        schema=schema,
        table=table,
        context=request.context(),
        progress=progress,
        on_interrupt=how_to_resume(request),
    ) as task:
        result = or_by_value(partial(_run, request, before=None, shared=shared), by_value, task)
    remove_journal(store, result)
    return result


def resume(
    request: TableRequest,
    task: Task,
    *,
    store: TaskStore,
    progress: Progress | None = None,
    shared: Shared | None = None,
    by_value: Compare | None = None,
) -> DiffResult:
    """Continue a task that was interrupted or failed, without the blocks that it has finished; by value, all of it."""
    before = read_journal(store, task.task_id)
    with reopen_task(store, task, progress=progress, on_interrupt=how_to_resume(request)) as reopened:
        result = or_by_value(partial(_run, request, before=before, shared=shared), by_value, reopened)
    remove_journal(store, result)
    return result


def how_to_resume(request: TableRequest) -> str:
    """Return the cure for an interrupted run, in which `{task}` is replaced by the id of its task."""
    return f"nothing was changed on any node; continue with: trueup {request.mode} --resume {{task}}"


def _run(request: TableRequest, task: OpenTask, before: Before | None, shared: Shared | None) -> DiffResult:
    started, settings = datetime.now(timezone.utc), request.settings
    application = f"trueup {request.mode} {task.short_id}"
    with ExitStack() as stack:
        shared = shared or stack.enter_context(open_engine(settings, request.spark))
        controls = stack.enter_context(open_nodes(request.nodes, application))
        stack.enter_context(shared.at_work(application, controls))

        checked = check(controls, request)
        planned, certifying = begin_certificate(request, controls, spec := checked.spec, is_resumed=bool(before))
        positions = together(controls, lambda it: it.begin(spec.schema, spec.table, export=settings.snapshot))
        at_snapshot = time.monotonic()
        check_key_values(controls, spec, checked.nullable)
        if before:
            spec = same_table(before, spec, positions, task.progress)
        ranges = before.plan.ranges if before else planned or plan_ranges(controls, spec, settings)
        job = job_of(settings, spec, controls, application, digests_only=request.digests_only)
        if not settings.snapshot:
            for control in controls:
                control.end()

        requested = partial(shared.requested, task.store, task.task_id)
        steering = stack.enter_context(open_steering(request, requested, application, task))
        state = new_state(request, steering, certifying)
        stack.callback(lambda: state.suspects.close())
        state.journal = stack.enter_context(open_journal(task, spec, ranges, before, positions))
        engine = shared.engine(max(ranges.estimates.values()), controls)
        comparison = Comparison(request, job, engine, controls, state, task.progress)

        compare_table(comparison, ranges, before)
        end_snapshots(comparison)
        # Without snapshots, the rows were last read just now.
        seen = at_snapshot if settings.snapshot else time.monotonic()
        with no_other_table(comparison, positions):
            (rehash if request.digests_only else recheck)(comparison, seen)

        earlier = before.positions if before else ()
        ending = Ending(comparison, ranges, positions, task.task_id, started, checked.remarks, earlier)
        result = conclude(ending, task.store)
    record(task, ending, result)
    return result
