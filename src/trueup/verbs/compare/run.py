"""Run `trueup diff` and `trueup check` over one table on nodes of any kind.

The path: open the nodes, match their columns, take the snapshots, probe the canonical form, compute the digests of all
blocks in place, compare the rows of the blocks that differ, re-check the differences, write the report.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import datetime, timezone
from functools import partial

from trueup.db.names import parse_table_name
from trueup.engine.failures import OR_LOCAL, environment_errors
from trueup.engine.progress import Progress
from trueup.errors import CheckFailed, TrueupError
from trueup.nodes.base import LocalNode
from trueup.report.model import DiffResult
from trueup.store import TaskStore
from trueup.task.compare.model import Ranges
from trueup.task.compare.result import Ending, conclude, record
from trueup.task.compare.state import new_state
from trueup.task.open import OpenTask, open_task
from trueup.task.steering import Steering
from trueup.verbs.compare.digests import all_digests, differing_blocks, with_blocks, with_hash
from trueup.verbs.compare.prepare import inexact, prepared, remarks_of
from trueup.verbs.compare.recheck import recheck
from trueup.verbs.compare.request import CompareRequest, CompareRun, Session, check_settings
from trueup.verbs.compare.rows import compared_blocks, keep

AGAIN = "nothing was changed on any node; run the command again"


def run(request: CompareRequest, *, store: TaskStore, progress: Progress | None = None) -> DiffResult:
    """Compare one table on all nodes of the request."""
    table = request.table
    schema, name = (part.spellings()[0] for part in parse_table_name(table.table))
    with open_task(
        store,
        "TABLE_CHECK" if table.digests_only else "TABLE_DIFF",
        cluster=table.cluster,
        schema=schema,
        table=name,
        context={**table.context(), "kinds": [node.kind for node in table.nodes]},
        progress=progress,
        on_interrupt=AGAIN,
    ) as task:
        return run_in(request, task)


def run_in(request: CompareRequest, task: OpenTask) -> DiffResult:
    """Compare the table of a request, as part of a task."""
    started = datetime.now(timezone.utc)
    table, settings = request.table, request.table.settings
    check_settings(table)
    with ExitStack() as stack:
        session = Session(request, stack)
        nodes, plan, tables = prepared(request, session, f"trueup {table.mode} {task.short_id}", stack)
        is_local = all(isinstance(node, LocalNode) for node in nodes) and not session.is_used
        moments = [node.begin() for node in nodes]
        at_snapshot = time.monotonic()
        plan = with_blocks(plan, nodes, tables, settings.compare_unit_size, is_local=is_local)
        plan = with_hash(plan, nodes)
        steering = Steering(settings, partial(task.store.wanted, task.task_id), task.progress, resume=AGAIN)
        state = new_state(table, steering)
        stack.callback(lambda: state.suspects.close())
        schema, name = (part.spellings()[0] for part in parse_table_name(table.table))
        task.progress.stage("hashing", len(nodes))
        plan, by_value, digests = all_digests(nodes, plan)
        run = CompareRun(table, nodes, plan, state, session, task.progress, steering.sleep, (schema, name))
        run.is_local = is_local
        run.is_held, run.in_flight = all(moment.held for moment in moments), request.in_flight
        run.selected, run.instead = request.map.selected(), request.map.instead(plan.left_out)

        differing = differing_blocks(digests, plan, state)
        if differing and table.digests_only and not plan.is_exact:
            state.stopped = CheckFailed([inexact(plan)], cure="run trueup diff")
        elif differing and not table.digests_only:
            _compare_rows(run, differing, at_snapshot)
        _check_moments(run)
        estimates = {name: described.rows or 0 for name, described in tables.items()}
        ranges = Ranges((), nodes[0].name, estimates, "")
        remarks = by_value + remarks_of(plan, moments, is_one_look=table.digests_only and bool(differing))
        ending = Ending(run, ranges, moments, task.task_id, started, remarks)
        result = conclude(ending)
    record(task, ending, result)
    return result


def _compare_rows(run: CompareRun, blocks: Mapping[int, int], seen: float) -> None:
    run.progress.stage("comparing rows", len(blocks))
    try:
        with environment_errors(), compared_blocks(run, blocks) as found:
            keep(run, found)
            _check_moments(run)
            for node in run.nodes:
                node.end()
            recheck(run, found, seen)
    except TrueupError as error:
        # The digests are known to differ: the report says what was not compared.
        error.cure = (error.cure or "").removesuffix(OR_LOCAL)
        run.state.stopped = error


def _check_moments(run: CompareRun) -> None:
    """Note nodes whose data was replaced while it was read: nothing is proven."""
    for node in run.nodes:
        if reason := node.changed():
            run.state.stopped = run.state.stopped or CheckFailed([reason], cure=AGAIN, node=node.name)
