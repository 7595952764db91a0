"""Run `trueup rerun`: compare the keys of a past report again, as a task of the task store."""

from __future__ import annotations

from functools import partial

from trueup.engine.progress import Progress
from trueup.report.model import DiffResult
from trueup.rows.request import TableRequest
from trueup.store import TaskStore
from trueup.task.compare.rerun import rerun_keys
from trueup.task.compare.result import record
from trueup.task.open import open_task
from trueup.task.past import Past
from trueup.task.shared import Shared
from trueup.task.steering import Steering


def run(
    request: TableRequest,
    past: Past,
    *,
    store: TaskStore,
    progress: Progress | None = None,
    shared: Shared | None = None,
) -> DiffResult:
    """Compare the keys of a past report on all nodes, and write a new report; `shared` as for a diff."""
    with open_task(
        store,
        "TABLE_RERUN",
        cluster=request.cluster,
        schema=past.summary["schema"],
        table=past.summary["table"],
        context=request.context(),
        progress=progress,
        on_interrupt="nothing was changed on any node; run the command again",
    ) as task:
        requested = partial(shared.requested, store, task.task_id) if shared else task.request
        steering = Steering(request.settings, requested, task.progress)
        ending, result = rerun_keys(
            request, past, task.task_id, task.progress, steering=steering, shared=shared, store=store
        )
        record(task, ending, result)
        return result
