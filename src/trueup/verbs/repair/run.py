"""The path of a repair: read the keys again, decide, check the rights, keep the old rows, write, verify."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from trueup.db import reader
from trueup.db.names import parse_table_name
from trueup.db.snapshot import Control
from trueup.engine.progress import Progress
from trueup.report.repair import RepairResult
from trueup.rows.request import TableRequest
from trueup.store import TaskStore
from trueup.task.job import job_of
from trueup.task.nodes import open_nodes
from trueup.task.open import OpenTask, open_task
from trueup.task.shared import open_engine
from trueup.task.steering import Steering
from trueup.task.together import together
from trueup.verbs.repair.check_plan import check_plan
from trueup.verbs.repair.decide import DecideKeys, RepairJob, read_and_decide
from trueup.verbs.repair.decisions import Decisions
from trueup.verbs.repair.layout import check_tables
from trueup.verbs.repair.plan import Plan
from trueup.verbs.repair.plan_file import plan_for
from trueup.verbs.repair.request import RepairKeys, RepairRequest
from trueup.verbs.repair.result import Ending, conclude, record, undo_path
from trueup.verbs.repair.verify import verify
from trueup.verbs.repair.write import write_nodes

# A key of a repair costs about as much as this many rows of a diff: Spark pays off for fewer keys than rows.
_ROWS_PER_KEY = 20
_CHANGED = "the row changed while the repair ran"
_INTERRUPTED = (
    "each node is either unchanged or completely written, and the undo file is beside the report; run the command again"
)


def run(
    request: RepairRequest,
    table: TableRequest,
    keys: RepairKeys,
    *,
    store: TaskStore,
    plan: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> RepairResult:
    """Repair the keys of one table on all nodes; a dry run unless the request says to execute."""
    # Raises on options that do not fit the nodes, before a task is recorded.
    request.mode(table.node_names)
    schema, name = (part.spellings()[0] for part in parse_table_name(table.table))
    with open_task(
        store,
        "TABLE_REPAIR",
        cluster=table.cluster,
        schema=schema,
        table=name,
        context={**table.context(), **request.context(), "mode": "repair"},
        progress=progress,
        on_interrupt=_INTERRUPTED,
    ) as task:
        result = _repair(request, table, keys, plan, task)
        record(task, result)
        return result


def _repair(
    request: RepairRequest, table: TableRequest, keys: RepairKeys, plan: Mapping[str, Any] | None, task: OpenTask
) -> RepairResult:
    started, settings = datetime.now(timezone.utc), table.settings
    application = f"trueup repair {task.short_id}"
    steering = Steering(settings, task.request, task.progress, resume=_INTERRUPTED)
    with ExitStack() as stack:
        shared = stack.enter_context(open_engine(settings, table.spark))
        controls = stack.enter_context(open_nodes(table.nodes, application))
        layout, remarks = check_tables(controls, table, keys.past)
        mode = request.mode(table.node_names) or plan_for(plan or {}, table.node_names, layout)
        if isinstance(mode, Plan):
            check_plan(controls, layout, mode, table.expressions)
        # One snapshot per node: rows that swap a value are read before the swap or after it, not in between.
        spec = layout.spec
        begin = partial(Control.begin, export=settings.snapshot, lock_timeout=request.lock_timeout)
        together(controls, lambda control: begin(control, spec.schema, spec.table))
        folder = Path(settings.report_dir or ".")
        undo = undo_path(request.undo, folder, spec.schema, spec.table) if request.execute else None
        decisions = Decisions(dict.fromkeys(table.node_names, layout), undo, task=task.task_id, mode=request.mode_name)
        stack.callback(decisions.close)
        engine = shared.engine(_ROWS_PER_KEY * len(keys.keys), controls)
        job = job_of(settings, spec, controls, application)
        repair = RepairJob(job, layout, mode, skip_stale=request.stale == "skip", with_rows=request.execute)
        read_and_decide(engine, repair, DecideKeys(keys.keys, keys.hashes), decisions, task.progress, steering)
        for control in controls:
            control.end()
        # From here on each node has one session, and later those of the rerun.
        reader.close_idle()
        ending = Ending(
            verb="repair",
            spec=spec,
            mode=request.mode_name,
            of=keys.of,
            executed=request.execute,
            folder=folder,
            decisions=decisions,
            engine=engine.name,
            task_id=task.task_id,
            started=started,
            remarks=[*keys.remarks, *remarks],
        )
        write_nodes(
            ending,
            table.nodes,
            controls,
            writing=request.writing,
            changed=_CHANGED,
            application=application,
            progress=task.progress,
        )
        for control in controls:
            control.close()
        if request.execute:
            verify(ending, table, keys.past, keys.keys, task.progress, shared)
        return conclude(ending)
