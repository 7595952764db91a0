"""Compare the keys of a past report again, and no others: which are resolved, which remain, which are new."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

from psycopg import sql

from trueup.config.wording import counted
from trueup.engine.progress import Progress
from trueup.engine.work import Failure, More, Room, Tasks
from trueup.errors import TrueupError
from trueup.report.model import DiffResult
from trueup.rows.comparable import check, check_key_values
from trueup.rows.digest import digest_query
from trueup.rows.fetch import among, rows_by_key
from trueup.rows.keys import KeyValues
from trueup.rows.request import TableRequest
from trueup.store import TaskStore
from trueup.task.compare.copies import CompareHashes, compare_hashes, differing_hashes, proven_copies
from trueup.task.compare.keys import compare_keys, known_in
from trueup.task.compare.model import Answer, CompareKeys, Found, Ranges
from trueup.task.compare.recheck import recheck
from trueup.task.compare.result import Ending, Since, conclude
from trueup.task.compare.state import Comparison, new_state
from trueup.task.job import Job, job_of
from trueup.task.nodes import open_nodes
from trueup.task.past import Past, same_hash
from trueup.task.shared import Shared, open_engine
from trueup.task.steering import Steering
from trueup.task.together import together

KEYS_PER_TASK = 5000
# For a keyless table each task is a scan of the table.
HASHES_PER_TASK = 50_000


@dataclass(frozen=True)
class ListedKeys:
    """Task: compare these keys on these nodes."""

    keys: tuple[KeyValues, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Compared:
    """Answer: the number of keys that were compared, and per node the number of rows with these keys."""

    keys: int
    rows: Mapping[str, int]


def rerun_keys(
    request: TableRequest,
    past: Past,
    task_id: str,
    progress: Progress,
    *,
    steering: Steering | None = None,
    shared: Shared | None = None,
    store: TaskStore | None = None,
) -> tuple[Ending, DiffResult]:
    """Connect, check, compare the keys in one snapshot per node, re-check what differs, write the report.

    `store` has the accepted differences.
    """
    started = datetime.now(timezone.utc)
    settings = request.settings
    application = f"trueup rerun {task_id[:8]}"
    with ExitStack() as stack:
        shared = shared or stack.enter_context(open_engine(settings, request.spark))
        controls = stack.enter_context(open_nodes(request.nodes, application))
        stack.enter_context(shared.at_work(application, controls))
        checked = check(controls, request)
        # Keys are compared with a seed that the report does not have; rows of a keyless table are found by its hashes.
        spec = same_hash(past, checked.spec)
        spec = spec if spec.is_keyless else replace(spec, seed=checked.spec.seed)
        check_key_values(controls, spec, checked.nullable)
        positions = together(controls, lambda it: it.begin(spec.schema, spec.table, export=settings.snapshot))
        at_snapshot = time.monotonic()
        job = job_of(settings, spec, controls, application)
        state = new_state(request, steering)
        stack.callback(lambda: state.suspects.close())
        engine = shared.engine(len(past.keys), controls)
        comparison = Comparison(request, job, engine, controls, state, progress)
        _compare(comparison, past.keys)
        for control in controls:
            control.end()
        recheck(comparison, at_snapshot if settings.snapshot else time.monotonic())
        remarks = (*past.rest(), *checked.remarks)
        since = Since(past.keys, past.pairs, past.unlisted)
        ending = Ending(comparison, Ranges((), "", {}, ""), positions, task_id, started, remarks, since=since)
        return ending, conclude(ending, store)


def _compare(run: Comparison, keys: Sequence[KeyValues]) -> None:
    state, progress = run.state, run.progress
    size = HASHES_PER_TASK if run.job.spec.is_keyless else KEYS_PER_TASK
    batches = (ListedKeys(tuple(keys[start : start + size]), state.nodes) for start in range(0, len(keys), size))
    tasks: Tasks[Any] = Tasks(batches, state.gate, expected=-(-len(keys) // size))
    progress.stage("comparing keys", len(keys))
    for answer in run.engine.run(partial(work, run.job), tasks):
        if isinstance(answer, Failure):
            state.failures.append(answer)
        elif isinstance(answer, More):
            tasks.add(answer.tasks)
        elif isinstance(answer, Found):
            state.add(answer)
        else:
            state.ran_on[tasks.ran_on] += 1
            state.rows.update(Counter(answer.rows))
            state.rows_checked += answer.keys
            progress.advance(answer.keys, rows=answer.keys)


def work(job: Job, task: Any, room: Room) -> Iterator[Answer | Compared]:
    """Compare the rows of some keys; whole rows are read only where hashes differ."""
    if isinstance(task, CompareKeys):
        yield from compare_keys(job, task, room)
    elif isinstance(task, CompareHashes):
        yield from compare_hashes(job, task, room)
    elif room.is_used_up:
        yield More((task,))
    elif job.spec.is_keyless:
        yield from _compare_copies(job, task, room)
    else:
        rows = rows_if_equal(job, task)
        if rows is not None:
            yield Compared(len(task.keys), dict.fromkeys(task.nodes, rows))
            return
        sides = job.read(
            task.nodes, lambda reader: rows_by_key(reader, job.spec, task.keys, values=False, timeout=job.timeout * 4)
        )
        yield Compared(len(task.keys), {node: len(side) for node, side in sides.items()})
        yield from compare_keys(job, CompareKeys(tuple(known_in(task.nodes, sides)), task.nodes), room)


def rows_if_equal(job: Job, task: ListedKeys) -> int | None:
    """Return the number of rows with these keys if all nodes have the same digest of them, else None."""
    query = digest_query(job.spec, sql.Literal(0), [among(job.spec, task.keys)])
    answers = job.read(task.nodes, lambda reader: reader.rows(query, timeout=job.timeout * 4))
    first, *others = ([tuple(row) for row in rows] for rows in answers.values())
    return int(first[0][1]) if all(other == first for other in others) else None


def _compare_copies(job: Job, task: ListedKeys, room: Room) -> Iterator[Answer | Compared]:
    marks = [int(key[0]) for key in task.keys]
    copies, made = proven_copies(job, marks, task.nodes)
    if made:
        reason = f"{counted(len(made), 'row')} of other contents were made to have the hash of a row of the report"
        raise TrueupError(reason, cure="run a new diff")
    yield Compared(len(marks), {node: sum(side.values()) for node, side in copies.items()})
    yield from compare_hashes(job, differing_hashes(marks, copies), room)
