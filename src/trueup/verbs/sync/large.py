"""A round that is too large for one transaction through the driver: its keys are dealt to the tasks of the engine.

First all keys are deleted, by all tasks; only then rows are inserted, all of them read in one view of the source. So
two rows never meet in a unique index that did not meet there in that view, however the tasks are timed. Meanwhile the
target is between two states, and says so: its mark stands at 0/0. Killed in the middle, the entries of the log are all
still there, and the next round does it again. Tables that were truncated are emptied and copied as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trueup.db.node import connect, error_from_server, is_lost
from trueup.db.reader import borrow
from trueup.engine.work import Engine, Failure, Room, Tasks
from trueup.rows.write.copy import pipe, rows_in, rows_out
from trueup.rows.write.delete import delete_all, delete_keys
from trueup.rows.write.key_lists import KeyList, in_key_list, key_batches
from trueup.rows.write.triggers import silence_triggers
from trueup.verbs.sync import marks
from trueup.verbs.sync.copy import ATTEMPTS, Copied, Job, copy, parts_of
from trueup.verbs.sync.link import Link
from trueup.verbs.sync.model import REPLICA, Round, SyncTable
from trueup.verbs.sync.round import Changes, done, finish, mark

if TYPE_CHECKING:
    from trueup.engine.progress import Progress

KEYS_A_TASK = 5_000


@dataclass(frozen=True)
class Carry:
    """Some keys of a table: to be deleted, or carried over. Without keys: all rows of the table, to be deleted."""

    job: Job
    table: SyncTable
    keys: KeyList | None
    insert: bool


def large_round(link: Link, changes: Changes, engine: Engine, progress: Progress, began: float) -> Round:
    """Carry the keys of an open view over; `changes` has them one by one."""
    tables = link.by_number()
    row: Any = link.source.execute("SELECT pg_export_snapshot()").fetchone()
    job = Job(
        link.name, link.source_node, link.target_node, str(row[0]), link.application, REPLICA, link.epoch, noted=False
    )
    whole = [tables[number] for number in changes.reload]
    lists = [
        (tables[number], keys)
        for number, texts in changes.texts.items()
        if number not in changes.reload
        for keys in key_batches(tables[number].spec, texts, KEYS_A_TASK)
    ]
    link.target.execute(marks.block("unmark"), {"sync": link.name})
    deletes = [Carry(job, table, keys, False) for table, keys in lists] + [Carry(job, t, None, False) for t in whole]
    progress.stage("delete keys", len(deletes))
    _run(engine, deletes, progress, "delete keys")
    progress.stage("carry rows", len(lists))
    rows = _run(engine, [Carry(job, table, keys, True) for table, keys in lists], progress, "carry rows")
    if whole:
        rows += copy(engine, parts_of(link.source, job, whole, engine.slots), progress)
    with link.target.transaction():
        marks.check_ours(link.target, link.name, link.epoch)
        stop = mark(link, changes, began).fetchone()[0]
    finish(link, changes)
    return replace(done(link, changes, began), rows=rows, large=True, stop_asked=bool(stop))


def _run(engine: Engine, tasks: Sequence[Carry], progress: Progress, stage: str) -> int:
    rows = 0
    for result in engine.run(carry, Tasks(tasks)):
        if isinstance(result, Failure):
            raise result.error
        rows += result.rows
        progress.advance(rows=result.rows, stage=stage)
    return rows


def carry(task: Carry, room: Room) -> Iterable[Copied]:
    """One task: it begins by deleting its keys, so that it can be done twice."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return [Copied(str(task.table), _carry_once(task))]
        except Exception as error:
            if attempt == ATTEMPTS or not is_lost(error):
                raise error_from_server(error, task.job.target, table=str(task.table)) from None
    raise AssertionError("unreachable")


def _carry_once(task: Carry) -> int:
    job, rows = task.job, 0
    target = connect(job.target, application=job.application, read_only=False)
    with target:
        target.execute("SET statement_timeout = 0; BEGIN")
        marks.check_ours(target, job.sync, job.epoch)
        silence_triggers(target)
        table = task.table.target
        if task.keys is None:
            delete_all(target, table.spec)
        else:
            delete_keys(target, table.spec, task.keys)
        if task.insert and task.keys is not None:
            out = rows_out(table.columns, table.name, in_key_list(table.spec, task.keys))
            with borrow(job.source, job.snapshot, application=job.application, retries=0) as reader:
                rows = pipe(reader.session(), out, target, rows_in(table))
        target.execute("COMMIT")
    return rows
