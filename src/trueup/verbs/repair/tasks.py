"""Run a repair as a task of the task store: of one table, or of all tables of a run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any

from trueup.config.wording import counted
from trueup.db.names import parse_table_name
from trueup.engine.progress import Progress
from trueup.report.many import folder_of_run
from trueup.report.repair import RepairResult
from trueup.report.repairs import RepairsResult, write_repairs
from trueup.store import TaskStore
from trueup.task.accepted import refuse_accepted
from trueup.task.open import OpenTask, open_task
from trueup.verbs.repair.plan_file import check_entries
from trueup.verbs.repair.request import RepairRequest, RepairRun, RepairTable
from trueup.verbs.repair.result import record, record_run
from trueup.verbs.repair.run import INTERRUPTED, run

_BEFORE_ALL = "1970-01-01T00:00:00.000Z"


def repair_table(
    request: RepairRequest,
    table: RepairTable,
    *,
    store: TaskStore,
    plan: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> RepairResult:
    """Repair the keys of one table on all nodes; a dry run unless the request says to execute."""
    # Raises on options that do not fit the nodes, before a task is recorded.
    request.mode(table.request.node_names)
    _refuse_accepted(store, [table])
    with _open(request, table, store, progress) as task:
        (result,), _ = run(request, [table], table.request.nodes, plan, task)
        record(task, result)
        return result


def repair_run(
    request: RepairRequest,
    whole: RepairRun,
    *,
    store: TaskStore,
    plan: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> RepairsResult:
    """Repair all tables of a run, each node in one transaction; a dry run unless the request says to execute."""
    request.mode(tuple(node.name for node in whole.nodes))
    _refuse_accepted(store, whole.tables)
    if plan is not None:
        check_entries(plan, whole.known)
    started = time.monotonic()
    names = ",".join(node.name for node in whole.nodes)
    with open_task(
        store,
        "TABLES_REPAIR",
        table=counted(len(whole.tables), "table"),
        context={"rerun_of": whole.of, "nodes": names, **request.context(), "mode": "repair"},
        progress=progress,
        on_interrupt=INTERRUPTED,
    ) as task:
        folder = folder_of_run(whole.settings.report_dir, "repair", task.task_id)
        tables = [_part(table, task, str(folder)) for table in whole.tables]
        results: list[RepairResult] = []
        failed = dict(whole.failed)
        with ExitStack() as stack:
            # What to do after a failure is said once, by the task of the run.
            parts = {table.name: stack.enter_context(_open(request, table, store, then="")) for table in tables}
            if tables:
                results, refused = run(request, tables, whole.nodes, plan, task, parts)
                failed |= refused
            for result in results:
                record(parts[result.table], result)
            for table, reason in failed.items():
                if table in parts and table not in {result.table for result in results}:
                    parts[table].finish({}, failed=True, error=reason)
        summary = RepairsResult(
            executed=request.execute,
            tables=tuple(results),
            failed=failed,
            mode=request.mode_name,
            nodes=tuple(node.name for node in whole.nodes),
            of=whole.of,
            seconds=round(time.monotonic() - started, 3),
            task_id=task.task_id,
            undo=next((result.undo for result in results if result.undo), ""),
            remarks=whole.remarks,
            validation=whole.validation,
            others=whole.others,
            is_running=whole.is_running,
        )
        return record_run(task, write_repairs(folder, summary, html="html" in whole.settings.outputs))


def _part(table: RepairTable, task: OpenTask, folder: str) -> RepairTable:
    """Return a table as a part of a run: its reports are in the folder of the run."""
    request = table.request
    settings = replace(request.settings, report_dir=folder)
    return replace(table, request=replace(request, part_of=task.task_id, settings=settings))


def _open(
    request: RepairRequest,
    table: RepairTable,
    store: TaskStore,
    progress: Progress | None = None,
    then: str = INTERRUPTED,
) -> AbstractContextManager[OpenTask]:
    schema, name = (part.spellings()[0] for part in parse_table_name(table.name))
    return open_task(
        store,
        "TABLE_REPAIR",
        cluster=table.request.cluster,
        schema=schema,
        table=name,
        context={**table.request.context(), **request.context(), "mode": "repair"},
        progress=progress,
        on_interrupt=then,
    )


def _refuse_accepted(store: TaskStore, tables: Sequence[RepairTable]) -> None:
    """Raise CheckFailed if keys were accepted since they were listed; keys of a validation, at any time."""
    for table in tables:
        if store.acceptances(table.name):
            keys = table.load()
            # Keys without a report are those of a validation, which does not know accepted differences.
            listed_at = str(keys.past.summary["end_time"]) if keys.past else _BEFORE_ALL
            refuse_accepted(store, table.name, keys.keys, listed_at)
