"""The diff from end to end: connect, check, cut into blocks, hash, split, compare, re-check, report.

This is the whole path on one screen; each step is a module of this folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from trueup.config.model import Node
from trueup.db import reader
from trueup.db.connections import as_connected, check_free
from trueup.db.names import parse_table_name
from trueup.db.node import named
from trueup.db.snapshot import Control
from trueup.diff.again import rehash
from trueup.diff.check import check, check_key_values
from trueup.diff.collect import Collected, compare_blocks, compare_multisets
from trueup.diff.keyless import bits_for, scan_parts
from trueup.diff.ranges import Ranges, plan_ranges
from trueup.diff.recheck import recheck
from trueup.diff.request import DiffRequest
from trueup.diff.result import Ending, conclude, summary_fields
from trueup.diff.spool import Spool
from trueup.diff.together import together
from trueup.diff.work import Job
from trueup.engine.choose import EngineStarter
from trueup.engine.progress import Progress, Silent, Told
from trueup.engine.work import Engine
from trueup.errors import CheckFailed, TrueupError
from trueup.report.model import DiffResult
from trueup.store import COMPLETED, FAILED, Task, TaskStore, working


def run(request: DiffRequest, *, store: TaskStore, progress: Progress | None = None) -> DiffResult:
    """Compare one table on all nodes of the request; the task store keeps the request and the answer."""
    kind = "TABLE_CHECK" if request.digests_only else "TABLE_DIFF"
    schema, table = (part.spellings()[0] for part in parse_table_name(request.table))
    task = store.start(kind, cluster=request.cluster, schema=schema, table=table, context=request.context())
    with working(
        store, task.task_id, interrupted=f"nothing was changed on any node; trueup tasks show {task.task_id[:8]}"
    ):
        told = Told(progress or Silent(), partial(store.heartbeat, task.task_id))
        ending, result = _compare(request, task, told)
    store.finish(
        task.task_id,
        FAILED if result.verdict == "INCOMPLETE" else COMPLETED,
        summary=summary_fields(ending, result, datetime.now(timezone.utc)),
        error="; ".join(result.incomplete) or None,
        diff_file_path=result.report,
    )
    return result


def _compare(request: DiffRequest, task: Task, progress: Progress) -> tuple[Ending, DiffResult]:
    started = datetime.now(timezone.utc)
    settings = request.settings
    application = f"trueup {'check' if request.digests_only else 'diff'} {task.task_id[:8]}"
    with ExitStack() as stack:
        starter = EngineStarter(
            request.spark, concurrency_factor=settings.concurrency_factor, max_connections=settings.max_connections
        )
        stack.callback(starter.close)
        controls = _connect(request, application)
        for control in controls:
            stack.callback(control.close)
        stack.callback(reader.stop_all, application)
        checked = check(controls, request)
        spec = checked.spec
        positions = together(controls, lambda it: it.begin(spec.schema, spec.table, export=settings.snapshot))
        check_key_values(controls, spec, checked.nullable)
        ranges = plan_ranges(controls, spec, settings.block_size)
        job = Job(
            spec=spec,
            nodes=tuple(map(as_connected, controls)),
            snapshots={control.node.name: control.snapshot_id for control in controls},
            application=application,
            timeout=settings.block_timeout,
            retries=settings.retries,
            unit=settings.compare_unit_size,
            digests_only=request.digests_only,
        )
        if not settings.snapshot:
            for control in controls:
                control.end()
        state = Collected(request.node_names, settings.max_diff_rows, _spool(request))
        stack.callback(lambda: state.suspects.close())
        engine = starter.get(max(ranges.estimates.values()))
        engine.most = check_free(controls, engine.slots)
        _look(engine, job, ranges, state, controls, request, progress)
        # The re-check looks at the present: from here on nobody who wants to alter the table has to wait for us.
        _let_go(controls, state)
        _look_again(engine, job, state, controls, request, progress)
        ending = Ending(request, spec, ranges, positions, state, engine.name, task.task_id, started, checked.remarks)
        return ending, conclude(ending)


def _connect(request: DiffRequest, application: str) -> list[Control]:
    """A session with every node, or all the reasons why not."""

    def one(node: Node) -> Control | TrueupError:
        try:
            return Control(node, application=application)
        except TrueupError as error:
            return error

    found = together(request.nodes, one)
    controls = [each for each in found if isinstance(each, Control)]
    errors = [each for each in found if isinstance(each, TrueupError)]
    if errors:
        for control in controls:
            control.close()
        if len(errors) == 1:
            raise errors[0]
        raise CheckFailed([f"{error} ({error.cure})" for error in errors], cure="check the addresses and the servers")
    return controls


def _look(
    engine: Engine,
    job: Job,
    ranges: Ranges,
    state: Collected,
    controls: Sequence[Control],
    request: DiffRequest,
    progress: Progress,
) -> None:
    """The first look: everything is hashed, and what differs is found."""
    if job.spec.is_keyless:
        bits = bits_for(max(ranges.estimates.values()), job.unit)
        parts = scan_parts(controls, job.spec, bits, snapshot=request.settings.snapshot)
        compare_multisets(engine, job, parts, bits, state, controls, progress)
    else:
        compare_blocks(engine, job, ranges.blocks, state, controls, progress)


def _let_go(controls: Sequence[Control], state: Collected) -> None:
    for control in controls:
        try:
            control.end()
        except Exception as error:
            state.stopped = state.stopped or named(error, control.node)


def _look_again(
    engine: Engine,
    job: Job,
    state: Collected,
    controls: Sequence[Control],
    request: DiffRequest,
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
            progress=progress,
        )
    else:
        recheck(
            engine,
            job,
            state,
            partial(_spool, request),
            rounds=settings.recheck,
            wait=settings.recheck_wait,
            progress=progress,
        )


def _spool(request: DiffRequest) -> Spool:
    return Spool(Path(request.settings.report_dir or ".").absolute())
