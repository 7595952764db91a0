"""The repair from end to end: connect, check, read and decide, show, keep the old rows, write, verify.

This is the whole path on one screen; each step is a module of this folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from trueup.db import reader
from trueup.db.names import parse_table_name
from trueup.db.snapshot import Control
from trueup.engine.choose import EngineStarter
from trueup.engine.progress import Progress
from trueup.engine.work import Engine, Failure, More, Tasks
from trueup.errors import CheckFailed
from trueup.report.repair import RepairResult
from trueup.rows.comparable import check, check_key_values
from trueup.rows.keys import KeyValues
from trueup.rows.request import TableRequest
from trueup.rows.spec import TableSpec
from trueup.store import TaskStore
from trueup.task.connections import check_free
from trueup.task.job import job_of
from trueup.task.nodes import open_nodes
from trueup.task.open import OpenTask, open_task
from trueup.task.past import Hash, Past, same_hash
from trueup.task.steering import Steering
from trueup.task.together import together
from trueup.verbs.repair.layout import Layout, layout_of
from trueup.verbs.repair.modes import Mode
from trueup.verbs.repair.plan_file import Known, plan_of
from trueup.verbs.repair.prepare import Prepared, PrepareKeys, RepairJob, prepare
from trueup.verbs.repair.request import RepairRequest
from trueup.verbs.repair.result import Ending, conclude, new_path
from trueup.verbs.repair.verify import verify
from trueup.verbs.repair.write import Gathered, write_where_allowed

_KEYS_A_TASK = 5000
# A key of a repair is read, decided, kept, written and read again; a row of a diff is hashed. Spark is worth its start
# for so many times fewer.
_ROWS_A_KEY = 20


@dataclass(frozen=True)
class Wanted:
    """The keys to mend: those of a report, or given ones (then there are no hashes, and nothing can be stale)."""

    of: str
    keys: tuple[KeyValues, ...]
    hashes: tuple[tuple[Hash, ...], ...] = ()
    past: Past | None = None
    remarks: tuple[str, ...] = ()


def run(
    request: RepairRequest,
    asked: TableRequest,
    wanted: Wanted,
    *,
    store: TaskStore,
    document: Any = None,
    progress: Progress | None = None,
) -> RepairResult:
    """Mend the keys on all nodes; a dry run unless the request says to execute. The task store keeps both ends."""
    # What is asked for must make sense before anything is begun.
    request.mode(asked.node_names)
    context = {**asked.context(), **request.context(), "mode": "repair"}
    schema, table = (part.spellings()[0] for part in parse_table_name(asked.table))
    interrupted = (
        "each node is either unchanged or completely written, and the undo file is beside the report;"
        " run the command again"
    )
    with open_task(
        store,
        "TABLE_REPAIR",
        cluster=asked.cluster,
        schema=schema,
        table=table,
        context=context,
        progress=progress,
        on_interrupt=interrupted,
    ) as task:
        steering = Steering(asked.settings, task.request, task.progress, resume=interrupted)
        result = _repair(request, asked, wanted, document, task, task.progress, steering)
        task.finish(
            {name: value for name, value in result.as_json().items() if name not in ("left", "examples")},
            failed=result.verdict == "FAILED",
            error="; ".join(f"{node}: {error}" for node, error in result.failed.items()),
            report=result.report,
        )
        return result


def _repair(
    request: RepairRequest,
    asked: TableRequest,
    wanted: Wanted,
    document: Any,
    task: OpenTask,
    progress: Progress,
    steering: Steering,
) -> RepairResult:
    started = datetime.now(timezone.utc)
    settings = asked.settings
    application = f"trueup repair {task.task_id[:8]}"
    with ExitStack() as stack:
        starter = EngineStarter(
            asked.spark, concurrency_factor=settings.concurrency_factor, max_connections=settings.max_connections
        )
        stack.callback(starter.close)
        controls = stack.enter_context(open_nodes(asked.nodes, application))
        checked = check(controls, asked)
        spec = same_hash(wanted.past, checked.spec) if wanted.past else checked.spec
        _refuse_keyless(spec)
        check_key_values(controls, spec, checked.nullable)
        layout = layout_of(controls, spec)
        mode = request.mode(asked.node_names) or _plan(document, asked, layout)
        # One moment for each node: rows that swap a value are seen before the swap or after it, never in between.
        together(controls, lambda it: it.begin(spec.schema, spec.table, export=settings.snapshot))
        undo = _undo_path(request, asked, layout) if request.execute else None
        gathered = Gathered(dict.fromkeys(asked.node_names, layout), undo, task=task.task_id, way=request.way)
        stack.callback(gathered.close)
        engine = starter.get(_ROWS_A_KEY * len(wanted.keys))
        engine.most = check_free(controls, engine.slots)
        job = job_of(settings, spec, controls, application)
        repair = RepairJob(job, layout, mode, skip_stale=request.stale == "skip", with_rows=request.execute)
        _read(engine, repair, wanted, gathered, progress, steering)
        for control in controls:
            control.end()
        ending = Ending(request, asked, spec, wanted.of, gathered, engine.name, task.task_id, started)
        ending.remarks += [*wanted.remarks, *checked.remarks]
        # From here on there is one session with each node, and later those of the rerun.
        reader.close_idle()
        _write(ending, controls, application, progress)
        for control in controls:
            control.close()
        if request.execute:
            verify(ending, wanted.past, wanted.keys, progress, engine)
        return conclude(ending)


def _refuse_keyless(spec: TableSpec) -> None:
    if spec.is_keyless:
        raise CheckFailed(
            ["the table has no key: a repair could not tell one of two equal rows from the other"],
            cure="give it a primary key (or compare with --key), run the diff again, and repair by that report",
            table=f"{spec.schema}.{spec.table}",
        )


def _plan(document: Any, asked: TableRequest, layout: Layout) -> Mode:
    key = layout.spec.key_names
    settable = [layout.carried[place].name for place in layout.taken if layout.carried[place].name not in key]
    return plan_of(document, Known(asked.node_names, layout.spec, tuple(settable)))


def _undo_path(request: RepairRequest, asked: TableRequest, layout: Layout) -> Path:
    if request.undo:
        return Path(request.undo).absolute()
    return new_path(asked, layout.spec, "undo", "gz")


def _read(
    engine: Engine, repair: RepairJob, wanted: Wanted, gathered: Gathered, progress: Progress, steering: Steering
) -> None:
    """Tasks read and decide; what they say is kept on disk. Nothing is written if one of them failed."""
    keys = wanted.keys
    given = (
        PrepareKeys(keys[at : at + _KEYS_A_TASK], wanted.hashes[at : at + _KEYS_A_TASK])
        for at in range(0, len(keys), _KEYS_A_TASK)
    )
    tasks: Tasks[Any] = Tasks(given, steering.gate)
    progress.stage("reading", len(keys))
    for answer in engine.run(partial(prepare, repair), tasks):
        if isinstance(answer, Failure):
            error = answer.error
            error.cure = error.cure or "nothing was written on any node; run it again"
            raise error
        if isinstance(answer, More):
            tasks.add(answer.tasks)
        elif isinstance(answer, Prepared):
            gathered.add(answer)
            progress.advance(answer.keys, rows=answer.keys)


def _write(ending: Ending, controls: Sequence[Control], application: str, progress: Progress) -> None:
    request = ending.request
    write_where_allowed(
        ending,
        ending.asked.nodes,
        controls,
        execute=request.execute,
        fire_triggers=request.fire_triggers,
        moved="the row changed while the repair ran",
        application=application,
        progress=progress,
    )
