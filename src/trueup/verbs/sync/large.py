"""A large round: too many keys or bytes for one transaction through the driver, so tasks of the engine copy them.

All tasks first delete all keys; only then rows are inserted, all of them read in one snapshot of the source. So a
unique index never holds two rows that were not both in that snapshot, whatever the timing of the tasks. Meanwhile the
target is between two states, and its position is 0/0. After a kill all entries are still in the log, and the next
round repeats the work. Truncated tables are emptied and copied as a whole. A keyless table is one task, because a list
of its keys is a scan of the table, and because no unique index would refuse rows that two attempts insert.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import psycopg
from psycopg import sql

from trueup.db.connection import Connection, node_of, one_value
from trueup.db.node import error_from_server, is_lost
from trueup.db.reader import borrow, borrow_writer, close_idle
from trueup.db.table_lock import ATTEMPT_MS
from trueup.engine.progress import Progress
from trueup.engine.work import Engine, Failure, Room, Tasks
from trueup.rows.write.copy import pipe, rows_in, rows_out
from trueup.rows.write.delete import delete_all, delete_keys
from trueup.rows.write.key_lists import KeyList, in_key_list, key_batches
from trueup.rows.write.triggers import require_silent_triggers
from trueup.verbs.sync import members, state
from trueup.verbs.sync.copy import ATTEMPTS, Copied, Job, copy, parts_of
from trueup.verbs.sync.link import Link
from trueup.verbs.sync.model import Round, SyncTable
from trueup.verbs.sync.round import (
    Changes,
    Checks,
    Rewritten,
    begin,
    check_tables,
    checked_transaction,
    finish,
    record,
    refuse_rewritten,
    rewritten,
    round_of,
)

KEYS_PER_TASK = 5_000


@dataclass(frozen=True)
class KeyTask:
    """One task: keys of a table to delete, or to delete and insert. Without keys: all rows of the table."""

    job: Job
    table: SyncTable
    keys: KeyList | None
    insert: bool


def large_round(
    link: Link, changes: Changes, engine: Engine, progress: Progress, began: float, checks: Checks
) -> Round:
    """Copy the keys in the open snapshot; `changes` has them one by one."""
    written = [table for table in link.tables if table.number in changes.texts or table.number in changes.reload]
    snapshot = str(one_value(link.source.execute("SELECT pg_export_snapshot()")))
    job = Job(
        link.name, link.source_node, link.target_node, snapshot, link.application, link.epoch,
        recorded=False, held=bool(changes.reload),
    )  # fmt: skip
    with checked_transaction(link, written):
        link.target.execute(state.statement("clear_position"), {"sync": link.name})
        # Before the first row: after a kill, the target has rows of this round.
        state.set_mark(link.target, link.name, changes.mark)
        shapes = members.shapes(link.target, [table.quoted_name for table in written])
    link.reader.done(link.marker, changes.mark)
    tables = {table.number: table for table in members.with_shapes(written, shapes)}
    reloaded = [tables[number] for number in changes.reload]
    lists = [
        (tables[number], keys)
        for number, texts in changes.texts.items()
        if number not in changes.reload
        for keys in key_batches(tables[number].spec, texts, KEYS_PER_TASK)
    ]
    deletes = [KeyTask(job, table, keys, insert=False) for table, keys in lists]
    deletes += [KeyTask(job, table, None, insert=False) for table in reloaded]
    progress.stage("delete keys", len(deletes))
    _run(engine, deletes, progress, "delete keys")
    inserts = [KeyTask(job, table, keys, insert=True) for table, keys in lists]
    progress.stage("insert rows", len(inserts))
    rows = _run(engine, inserts, progress, "insert rows")
    # Through the session that has locked them: an application may wait for these tables.
    here = [KeyTask(job, table, None, insert=True) for table in reloaded if table.spec.is_keyless]
    try:
        rows += sum(_run_once(task, link.source) for task in here)
    except psycopg.Error as error:
        raise link.error_from_server(error) from None
    if in_parts := [table for table in reloaded if not table.spec.is_keyless]:
        copied, stale = copy(engine, parts_of(link.source, job, in_parts, engine.slots), progress, link.source)
        if stale:
            # The session with the source holds locks that prevent it, as long as it is connected.
            raise Rewritten(f"rewritten while a round read it: {', '.join(sorted(stale))}", cure="run it again")
        rows += copied
    # Another token for the last row: a target that went back into the round lacks rows.
    changes = begin(link, changes)
    # It also puts the earlier commits of the tasks on the disk: the log of the server is written in order.
    with state.writing(link.target, link.name, link.epoch):
        check_tables(link, ())
        stop = one_value(record(link, changes, began))
    finish(link, changes, checks)
    return replace(round_of(link, changes, began), rows=rows, large=True, stop_asked=bool(stop))


def _run(engine: Engine, tasks: Sequence[KeyTask], progress: Progress, stage: str) -> int:
    rows = 0
    for result in engine.run(run_task, Tasks(tasks)):
        if isinstance(result, Failure):
            raise result.error
        rows += result.rows
        progress.advance(rows=result.rows, stage=stage)
    return rows


def run_task(task: KeyTask, room: Room) -> Iterable[Copied]:
    """Run one task; it deletes its keys first, so it can be repeated after a lost connection."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return [Copied(str(task.table), _run_once(task, None))]
        except Exception as error:
            if attempt == ATTEMPTS or not is_lost(error):
                raise error_from_server(error, node_of(error) or task.job.target, table=str(task.table)) from None
            # They may be lost too.
            close_idle()
    raise AssertionError("unreachable")


def _run_once(task: KeyTask, source: Connection | None) -> int:
    """Write the rows of a task, which it reads through this session, or through one of its own."""
    job, rows = task.job, 0
    with borrow_writer(job.target, application=job.application) as target:
        target.execute("SET statement_timeout = 0; BEGIN")
        state.check_epoch(target, job.sync, job.epoch)
        require_silent_triggers(target)
        table = task.table.target
        if table.spec.is_keyless:
            # Another attempt of this task may not have ended: its rows have to be visible before they are deleted.
            target.execute(sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(table.name))
        state.check_table(target, job.sync, task.table)
        if task.keys is None:
            delete_all(target, table.spec)
        else:
            delete_keys(target, table.spec, task.keys)
        if task.insert:
            among = None if task.keys is None else in_key_list(table.spec, task.keys)
            out = rows_out(table.columns, table.name, among)
            with ExitStack() as stack:
                if source is None:
                    source = stack.enter_context(
                        borrow(job.source, job.snapshot, application=job.application, retries=0, keep_locks=False)
                    ).session()
                    if job.held:
                        # An application may wait for a truncated table, and hold this one: see `Runner`.
                        source.execute(f"SET LOCAL lock_timeout = {ATTEMPT_MS}")
                rows = pipe(source, out, target, rows_in(table))
                refuse_rewritten(rewritten(source, [task.table]))
        target.execute("COMMIT")
    return rows
