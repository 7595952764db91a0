"""The path of a repair, of one or many tables: check, read the keys again, decide, keep the old rows, write, verify."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from trueup.capture.triggers.sync_turns import sync_turns
from trueup.config.model import Node
from trueup.db import reader
from trueup.db.names import display_name
from trueup.db.snapshot import Control
from trueup.report.repair import RepairResult
from trueup.task.job import job_of
from trueup.task.nodes import open_nodes
from trueup.task.open import OpenTask
from trueup.task.shared import open_engine
from trueup.task.steering import Steering
from trueup.task.together import together
from trueup.verbs.repair.decide import DecideKeys, RepairJob, read_and_decide
from trueup.verbs.repair.decisions import Decisions, Rows
from trueup.verbs.repair.prepare import Prepared, prepare_all
from trueup.verbs.repair.request import RepairRequest, RepairTable
from trueup.verbs.repair.result import Ending, Facts, conclude, undo_path
from trueup.verbs.repair.verify import verify
from trueup.verbs.repair.write import NOTHING_WRITTEN, write_nodes

# A key of a repair costs about as much as this many rows of a diff: Spark pays off for fewer keys than rows.
_ROWS_PER_KEY = 20
_CHANGED = "the row changed while the repair ran"
INTERRUPTED = (
    "each node is either unchanged or completely written, and the undo file is beside the report; run the command again"
)


def run(
    request: RepairRequest,
    tables: Sequence[RepairTable],
    nodes: Sequence[Node],
    plan: Mapping[str, Any] | None,
    task: OpenTask,
    parts: Mapping[str, OpenTask] | None = None,
) -> tuple[list[RepairResult], dict[str, str]]:
    """Repair all tables; return their results, and the tables of a run that cannot be repaired, with the reasons.

    `parts` has the task of each table of a run.
    """
    started, first = datetime.now(timezone.utc), tables[0].request
    settings, folder = first.settings, Path(first.settings.report_dir or ".")
    application = f"trueup repair {task.short_id}"
    steering = Steering(settings, task.request, task.progress, resume=NOTHING_WRITTEN)
    task.on_failure = task.on_interrupt = NOTHING_WRITTEN
    with ExitStack() as stack:
        shared = stack.enter_context(open_engine(settings, first.spark))
        controls = stack.enter_context(open_nodes(nodes, application))
        prepared, failed = prepare_all(request, tables, controls, plan or {}, is_run=parts is not None)
        if not prepared:
            return [], failed
        turns = stack.enter_context(
            sync_turns(controls, _names(prepared, nodes), request.source_of_truth, application, execute=request.execute)
        )
        # One snapshot per node: rows that swap a value, or refer to each other, are read in one state.
        together(controls, partial(_begin, prepared, settings.snapshot, request.lock_timeout))
        rows = _open_rows(request, prepared, folder, task) if request.execute else None
        stack.callback(lambda: rows.close() if rows else None)
        facts = Facts("repair", request.mode_name, request.execute, folder, started)
        endings: list[Ending] = []
        for number, each in enumerate(prepared):
            keys, own = each.table.load(), each.table.request
            engine = shared.engine(_ROWS_PER_KEY * len(keys.keys), controls)
            decisions = Decisions(number, each.layouts, rows)
            job = job_of(own.settings, each.layout.spec, each.controls, application)
            repair = RepairJob(job, each.layout, each.mode, request.stale == "skip", with_rows=request.execute)
            read_and_decide(engine, repair, DecideKeys(keys.keys, keys.hashes), decisions, task.progress, steering)
            task_id = (parts[each.table.name] if parts else task).task_id
            remarks = [*keys.remarks, *each.remarks, *engine.remarks]
            unlisted = keys.past.unlisted if keys.past else ""
            endings.append(
                Ending(facts, each.layout.spec, keys.of, decisions, engine.name, task_id, remarks, unlisted=unlisted)
            )
        for control in controls:
            control.end()
        # From here on each node has one session, and later those of the rerun.
        reader.close_idle()
        write_nodes(
            endings,
            controls,
            rows,
            writing=request.writing,
            changed=_CHANGED,
            application=application,
            task=task,
            interrupted=INTERRUPTED,
            turns=turns,
        )
        if request.execute:
            for control in controls:
                control.close()
            for ending, each in zip(endings, prepared, strict=True):
                verify(ending, each.table, task.progress, shared)
        return [conclude(ending) for ending in endings], failed


def _names(prepared: Sequence[Prepared], nodes: Sequence[Node]) -> dict[str, list[str]]:
    """Return the names of the tables by node."""
    specs = [(each.layout.spec, each.table.request.node_names) for each in prepared]
    return {
        node.name: [display_name(spec.schema, spec.table) for spec, names in specs if node.name in names]
        for node in nodes
    }


def _begin(prepared: Sequence[Prepared], export: bool, lock_timeout: float, control: Control) -> None:
    """Take the snapshot of a node, with a lock on its tables."""
    specs = [each.layout.spec for each in prepared if control in each.controls]
    names = [(spec.schema, spec.table) for spec in specs]
    control.begin(export=export, also=names, lock_timeout=lock_timeout)


def _open_rows(request: RepairRequest, prepared: Sequence[Prepared], folder: Path, task: OpenTask) -> Rows:
    names = [(each.layout.spec.schema, each.layout.spec.table) for each in prepared]
    layouts = [each.layouts for each in prepared]
    return Rows(request.undo, partial(undo_path, folder, names), layouts, task=task.task_id, mode=request.mode_name)
