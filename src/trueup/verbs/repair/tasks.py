"""Run a repair as a task of the task store: of one table, or of all tables of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trueup.db.names import parse_table_name
from trueup.engine.progress import Progress
from trueup.report.repair import RepairResult
from trueup.store import TaskStore
from trueup.task.open import open_task
from trueup.verbs.repair.request import RepairRequest, RepairTable
from trueup.verbs.repair.result import record
from trueup.verbs.repair.run import INTERRUPTED, run


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
    schema, name = (part.spellings()[0] for part in parse_table_name(table.name))
    with open_task(
        store,
        "TABLE_REPAIR",
        cluster=table.request.cluster,
        schema=schema,
        table=name,
        context={**table.request.context(), **request.context(), "mode": "repair"},
        progress=progress,
        on_interrupt=INTERRUPTED,
    ) as task:
        (result,), _ = run(request, [table], table.request.nodes, plan, task)
        record(task, [result])
        return result
