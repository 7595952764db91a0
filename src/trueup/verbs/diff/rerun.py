"""The keys of a past report are looked at again, and no others: what is resolved, what remains, what is new?"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import Any

from psycopg import sql

from trueup.engine.choose import EngineStarter
from trueup.engine.progress import Progress
from trueup.engine.work import Engine, Failure, More, Room, Tasks
from trueup.report.model import DiffResult
from trueup.report.past import Past, same_hash
from trueup.rows.comparable import check, check_key_values
from trueup.rows.digest import digest_query
from trueup.rows.fetch import among, rows_by_key
from trueup.rows.keys import KeyValues
from trueup.store import TaskStore
from trueup.task.connections import check_free
from trueup.task.job import Job, job_of
from trueup.task.nodes import open_nodes
from trueup.task.open import open_task
from trueup.task.steering import Steering
from trueup.task.together import together
from trueup.verbs.diff.collect import Collected
from trueup.verbs.diff.compare import compare_keys, known_in
from trueup.verbs.diff.keyless import CompareHashes, compare_hashes, copies_where, with_hash
from trueup.verbs.diff.ranges import Ranges
from trueup.verbs.diff.recheck import recheck
from trueup.verbs.diff.request import DiffRequest
from trueup.verbs.diff.result import Ending, Since, conclude, summary_fields
from trueup.verbs.diff.run import spool_of
from trueup.verbs.diff.work import Answer, CompareKeys, Found

_KEYS_A_TASK = 5000
# Each look at a keyless table is a scan of it.
_HASHES_A_TASK = 50_000


@dataclass(frozen=True)
class LookAt:
    """Look at these keys on all nodes."""

    keys: tuple[KeyValues, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Looked:
    """So many keys were looked at, and so many rows of them were there."""

    keys: int
    rows: Mapping[str, int]


def run(request: DiffRequest, past: Past, *, store: TaskStore, progress: Progress | None = None) -> DiffResult:
    """Look at the keys of a past report again; the task store keeps the request and the answer."""
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
        steering = Steering(request.settings, task.request, task.progress)
        ending, result = look_again(request, past, task.task_id, task.progress, steering=steering)
        task.finish(
            summary_fields(ending, result, datetime.now(timezone.utc)),
            failed=result.verdict == "INCOMPLETE",
            error="; ".join(result.incomplete),
            report=result.report,
        )
        return result


def look_again(
    request: DiffRequest,
    past: Past,
    task_id: str,
    progress: Progress,
    *,
    steering: Steering | None = None,
    engine: Engine | None = None,
) -> tuple[Ending, DiffResult]:
    """The rerun itself: connect, check, look at the keys in one snapshot a node, re-check what differs, report."""
    started = datetime.now(timezone.utc)
    settings = request.settings
    application = f"trueup rerun {task_id[:8]}"
    with ExitStack() as stack:
        if engine is None:
            starter = EngineStarter(
                request.spark,
                concurrency_factor=settings.concurrency_factor,
                max_connections=settings.max_connections,
            )
            stack.callback(starter.close)
            engine = starter.get(len(past.keys))
        controls = stack.enter_context(open_nodes(request.nodes, application))
        checked = check(controls, request)
        spec = same_hash(past, checked.spec)
        check_key_values(controls, spec, checked.nullable)
        positions = together(controls, lambda it: it.begin(spec.schema, spec.table, export=settings.snapshot))
        at_snapshot = time.monotonic()
        job = job_of(settings, spec, controls, application)
        state = Collected(request.node_names, settings.max_diff_rows, spool_of(request))
        state.steering = steering
        stack.callback(lambda: state.suspects.close())
        engine.most = check_free(controls, engine.slots)
        _look(engine, job, past.keys, state, progress)
        for control in controls:
            control.end()
        recheck(
            engine,
            job,
            state,
            partial(spool_of, request),
            rounds=settings.recheck,
            wait=settings.recheck_wait,
            seen=at_snapshot if settings.snapshot else time.monotonic(),
            progress=progress,
        )
        ending = Ending(
            request,
            spec,
            Ranges((), "", {}, ""),
            positions,
            state,
            engine.name,
            task_id,
            started,
            (*past.rest(), *checked.remarks),
            since=Since(past.keys, past.pairs),
        )
        return ending, conclude(ending)


def _look(engine: Engine, job: Job, keys: Sequence[KeyValues], state: Collected, progress: Progress) -> None:
    size = _HASHES_A_TASK if job.spec.is_keyless else _KEYS_A_TASK
    given = (LookAt(tuple(keys[at : at + size]), state.nodes) for at in range(0, len(keys), size))
    tasks: Tasks[Any] = Tasks(given, state.gate)
    progress.stage("looking again", len(keys))
    for answer in engine.run(partial(look, job), tasks):
        if isinstance(answer, Failure):
            state.failures.append(answer)
        elif isinstance(answer, More):
            tasks.add(answer.tasks)
        elif isinstance(answer, Found):
            state.found_in(answer)
        else:
            state.rows.update(Counter(answer.rows))
            state.rows_checked += answer.keys
            progress.advance(answer.keys, rows=answer.keys)


def look(job: Job, task: Any, room: Room) -> Iterator[Answer | Looked]:
    """What the nodes hold for some keys; whole rows only where they differ."""
    if isinstance(task, CompareKeys):
        yield from compare_keys(job, task, room)
    elif isinstance(task, CompareHashes):
        yield from compare_hashes(job, task, room)
    elif room.is_used_up:
        yield More((task,))
    elif job.spec.is_keyless:
        yield from _look_at_hashes(job, task, room)
    else:
        agreed = _digests_agree(job, task)
        if agreed is not None:
            yield Looked(len(task.keys), dict.fromkeys(task.nodes, agreed))
            return
        sides = job.read(
            task.nodes, lambda reader: rows_by_key(reader, job.spec, task.keys, values=False, timeout=job.timeout * 4)
        )
        yield Looked(len(task.keys), {node: len(side) for node, side in sides.items()})
        yield from compare_keys(job, CompareKeys(tuple(known_in(task.nodes, sides)), task.nodes), room)


def _digests_agree(job: Job, task: LookAt) -> int | None:
    """How many rows of these keys there are, where all nodes have the same; equal digests mean equal rows."""
    query = digest_query(job.spec, sql.Literal(0), [among(job.spec, task.keys)])
    found = job.read(task.nodes, lambda reader: reader.rows(query, timeout=job.timeout * 4))
    first, *others = ([tuple(row) for row in rows] for rows in found.values())
    return int(first[0][1]) if all(other == first for other in others) else None


def _look_at_hashes(job: Job, task: LookAt, room: Room) -> Iterator[Answer | Looked]:
    marks = [int(key[0]) for key in task.keys]
    copies = job.read(task.nodes, lambda reader: copies_where(reader, job.spec, with_hash(marks)))
    yield Looked(len(marks), {node: sum(side.values()) for node, side in copies.items()})
    differing = tuple(mark for mark in marks if len({side.get(mark, 0) for side in copies.values()}) > 1)
    yield from compare_hashes(job, CompareHashes(differing, copies), room)
