"""The parts of the copy: page ranges of the source in one exported snapshot, each copied by a task.

A part is a range of pages, not of keys: whatever the key is, every page is read once and in order. That loses no row,
although rows move between pages: an update after the snapshot touches the key, and rounds copy all keys touched
since before the first snapshot. Only a rewrite of the table moves rows without touching keys, and an older snapshot may
show the new file as empty. A task locks the table only while it reads a part, and then compares its file with that of
the snapshot: if it is another one, the part is stale, and the table is copied again from the start. The rows of a part
and the record that it is copied are one transaction of the target.

Where the session with the snapshot has locked the tables, an application that waits for one of them would make the
tasks wait behind it, for a lock that is released after the copy only. A task ends soon then, and that session
copies the part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import sql

from trueup.config.model import Node
from trueup.db.connection import Connection, node_of, one_row, one_value
from trueup.db.lock_holders import LOCK_NOT_AVAILABLE
from trueup.db.node import LOCK_TIMEOUT, error_from_server, is_lost
from trueup.db.reader import borrow, borrow_writer, close_idle
from trueup.db.statements import load
from trueup.db.table_lock import SECONDS, lock_shared
from trueup.engine.progress import Progress
from trueup.engine.work import Engine, Failure, Room, Tasks
from trueup.errors import QueryError
from trueup.rows.write.copy import pipe, rows_in, rows_out
from trueup.rows.write.delete import delete_all
from trueup.rows.write.stage import stage
from trueup.rows.write.triggers import require_silent_triggers
from trueup.rows.write.upsert import insert_missing
from trueup.verbs.sync.model import SyncTable
from trueup.verbs.sync.state import check_epoch, check_table, statement, writing

# Bytes per part: large enough that opening sessions does not matter, small enough to repeat after a kill.
PART_BYTES = 64 * 1024 * 1024
LEAST_BYTES = 4 * 1024 * 1024
Pages = tuple[int, "int | None"]
Done = dict[tuple[int, int], "list[Pages]"]
ATTEMPTS = 4
# Maximum progress bars on a terminal.
BARS = 12


@dataclass(frozen=True)
class Job:
    """What all parts of a copy have in common."""

    sync: str
    source: Node
    target: Node
    snapshot: str
    application: str
    # Checked in every transaction, see `state.take_over`.
    epoch: int
    # Whether triggers and foreign keys of the target are silenced.
    silent: bool = True
    # The copy continues in another snapshot: a row that moved meanwhile may exist on the target already. Its key was
    # touched, so a round copies it; the copy does not change it.
    continued: bool = False
    # Whether copied parts are recorded; a round that copies a whole table does not.
    recorded: bool = True
    # Whether the session with the snapshot has locked the tables.
    held: bool = False


@dataclass(frozen=True)
class Part:
    """A range of pages of a table; the last part of a table has no end."""

    job: Job
    table: SyncTable
    relation: tuple[str, str]
    oid: int
    file: int
    first: int
    end: int | None

    def __str__(self) -> str:
        return f"pages {self.first} to {self.end or 'the end'}"


@dataclass(frozen=True)
class Copied:
    """A part that is copied."""

    table: str
    rows: int
    # An earlier attempt had copied it: its answer was lost.
    is_repeated: bool = False
    # The table was rewritten after the snapshot: nothing was copied.
    is_stale: bool = False
    # An application waits for the table: nothing was copied.
    blocked: Part | None = None


@contextmanager
def hold_snapshot(source: Connection, node: Node, locked: Sequence[SyncTable]) -> Iterator[str]:
    """Export a snapshot for the tasks, and hold locks that prevent a rewrite of the tables `locked`."""
    source.execute("SET idle_in_transaction_session_timeout = 0; SET statement_timeout = 0")
    source.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
    try:
        if locked:
            # Before the snapshot: after a TRUNCATE, an older snapshot shows an empty table.
            lock_shared(source, node, [table.name for table in locked])
        yield str(one_value(source.execute("SELECT pg_export_snapshot()")))
    finally:
        if not source.closed:
            source.execute("ROLLBACK")


def parts_of(
    source: Connection, job: Job, tables: Sequence[SyncTable], slots: int, done: Done | None = None
) -> list[Part]:
    """Cut the tables into parts without the copied pages, large tables first; call it inside of the snapshot."""
    by_oid = {table.oid: table for table in tables}
    rows = _leaves(source, list(by_oid))
    total = sum(row[6] for row in rows)
    # Enough parts that all slots end at about the same time.
    part_bytes = max(LEAST_BYTES, min(PART_BYTES, total // (slots * 8 or 1)))
    parts: list[Part] = []
    for root, oid, schema, name, file, pages, size, is_heap in rows:
        step = max(1, int(part_bytes * pages / size)) if size and is_heap else max(1, pages)
        for first, end in cut(done.get((oid, file), []) if done else [], pages, step):
            parts.append(Part(job, by_oid[root], (schema, name), oid, file, first, end))
    return parts


def _leaves(source: Connection, oids: Sequence[int]) -> list[tuple[Any, ...]]:
    """Return the tables that store the rows of these tables, in the open transaction."""
    query = load("trueup.verbs.sync", "copy.sql")["leaves"]
    # The functions that measure a table wait for a session that rewrites it.
    source.execute("SAVEPOINT leaves; SET LOCAL lock_timeout = 300")
    try:
        rows = source.execute(query, {"oids": oids, "sizes": True}).fetchall()
    except psycopg.errors.LockNotAvailable:
        source.execute("ROLLBACK TO SAVEPOINT leaves")
        rows = source.execute(query, {"oids": oids, "sizes": False}).fetchall()
    source.execute(f"RELEASE SAVEPOINT leaves; SET LOCAL lock_timeout = '{LOCK_TIMEOUT:.0f}s'")
    return rows


def cut(done: Iterable[Pages], pages: int, step: int) -> list[Pages]:
    """Return the page ranges between those that are done, in pieces of `step` pages; there is no gap between them."""
    left: list[Pages] = []
    start: int | None = 0
    for first, end in sorted(done, key=lambda pages: pages[0]):
        if start is not None and first > start:
            left += _pieces(start, first, pages, step)
        start = None if start is None or end is None else max(start, end)
    if start is not None:
        left += _pieces(start, None, pages, step)
    return left


def _pieces(first: int, end: int | None, pages: int, step: int) -> list[Pages]:
    starts = list(range(first, pages if end is None else end, step)) or [first]
    return list(zip(starts, [*starts[1:], end], strict=True))


def read_done(target: Connection, sync: str) -> Done:
    """Return the copied pages by table and file."""
    done: Done = {}
    for oid, file, first, end in target.execute(load("trueup.verbs.sync", "copy.sql")["done"], [sync]).fetchall():
        done.setdefault((oid, file), []).append((first, end))
    return done


def rewritten(source: Connection, tables: Sequence[SyncTable], done: Done) -> list[SyncTable]:
    """Return the tables that were rewritten since pages were copied: TRUNCATE, VACUUM FULL, CLUSTER, ALTER TABLE."""
    by_oid = {table.oid: table for table in tables}
    rows = _leaves(source, list(by_oid))
    files = {row[1]: (row[0], row[4]) for row in rows}
    stale: dict[int, SyncTable] = {}
    for oid, file in done:
        root, now = files.get(oid, (0, 0))
        if root and now != file:
            stale[root] = by_oid[root]
    return list(stale.values())


def start_anew(target: Connection, job: Job, tables: Sequence[SyncTable], relations: Sequence[int]) -> None:
    """Empty tables on the target, and delete the records of their copied parts."""
    with writing(target, job.sync, job.epoch):
        if job.silent:
            require_silent_triggers(target)
        for table in tables:
            check_table(target, job.sync, table)
        for table in reversed(tables):
            delete_all(target, table.spec)
        target.execute(
            "DELETE FROM trueup.copied WHERE sync = %s AND relation = ANY(%s::oid[])", [job.sync, list(relations)]
        )


def copy(
    engine: Engine, parts: Sequence[Part], progress: Progress, source: Connection, ran_on: Counter[str] | None = None
) -> tuple[int, set[str]]:
    """Copy the parts on the engine; return the number of rows, and the tables that were rewritten meanwhile.

    The first part that fails ends the copy. `source` is the session with the snapshot. `ran_on` counts the parts that
    each engine has copied.
    """
    by_table: dict[str, int] = {}
    for part in parts:
        by_table[str(part.table)] = by_table.get(str(part.table), 0) + 1
    progress.stage("copy", len(parts))
    bars = sorted(by_table, key=lambda name: -by_table[name])[:BARS] if len(by_table) > 1 else []
    for name in bars:
        progress.stage(name, by_table[name])
    rows = 0
    stale: set[str] = set()
    tasks = Tasks(parts, expected=len(parts))
    ran_on = Counter() if ran_on is None else ran_on
    for result in engine.run(copy_part, tasks):
        if isinstance(result, Failure):
            raise result.error
        if result.blocked is not None:
            result = _copy_here(result.blocked, source)
        rows += result.rows
        # Only the tasks of a wave are done again, by threads if Spark was lost.
        ran_on["spark" if result.is_repeated else tasks.ran_on] += 1
        if result.is_stale:
            stale.add(result.table)
        progress.advance(rows=result.rows, stage="copy")
        if result.table in bars:
            progress.advance(rows=result.rows, stage=result.table)
    return rows, stale


def _copy_here(part: Part, source: Connection) -> Copied:
    """Copy a part through the session that has locked the table."""
    try:
        with borrow_writer(part.job.target, application=part.job.application) as target:
            # The session cannot be opened again after a conflict.
            return _write(part, source, target, staged=part.job.continued)
    except Exception as error:
        raise _named(error, part) from None


def copy_part(part: Part, room: Room) -> Iterable[Copied]:
    """Copy one part in a task; retry after a lost connection, because the record shows whether it was committed."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            copied = copy_once(part)
            # The attempt before is one of this task.
            return [replace(copied, is_repeated=copied.is_repeated and attempt == 1)]
        except Exception as error:
            if attempt == ATTEMPTS or not is_lost(error):
                raise _named(error, part) from None
            # They may be lost too.
            close_idle()
    raise AssertionError("unreachable")


def _named(error: BaseException, part: Part) -> Exception:
    return error_from_server(error, node_of(error) or part.job.target, table=str(part.table), block=str(part))


def copy_once(part: Part) -> Copied:
    job, name = part.job, str(part.table)
    with borrow(job.source, job.snapshot, application=job.application, retries=0, keep_locks=False) as reader:
        source = reader.session()
        try:
            is_same = _lock(part, source)
        except QueryError as error:
            if not job.held or error.sqlstate != LOCK_NOT_AVAILABLE:
                raise
            reader.close()
            return Copied(name, 0, blocked=part)
        if not is_same:
            # The rows of a dropped partition are gone; the next start of a round notices that it was dropped.
            is_gone = one_value(source.execute("SELECT pg_relation_filenode(%s::oid) IS NULL", [part.oid]))
            return Copied(name, 0, is_stale=not is_gone or part.oid == part.table.oid)
        with borrow_writer(job.target, application=job.application) as target:
            try:
                return _write(part, source, target, staged=False)
            except (psycopg.errors.UniqueViolation, psycopg.errors.ExclusionViolation):
                if not job.continued:
                    raise
                target.execute("ROLLBACK")
                # The session with the source is inside of a COPY.
                reader.close()
                source = reader.session()
                if not _lock(part, source):
                    return Copied(name, 0, is_stale=True)
                return _write(part, source, target, staged=True)


def _lock(part: Part, source: Connection) -> bool:
    """Lock the relation of a part; return False if it is not the relation and the file of the snapshot any more."""
    try:
        lock_shared(source, part.job.source, [part.relation], seconds=0.0 if part.job.held else SECONDS)
    except psycopg.errors.UndefinedTable:
        source.execute("ROLLBACK TO SAVEPOINT locks")
        return False
    name = sql.Identifier(*part.relation).as_string(source)
    # Both functions see the catalog as it is now, not as in the snapshot.
    query = "SELECT r::oid::bigint, pg_relation_filenode(r)::bigint FROM to_regclass(%s) r"
    return one_row(source.execute(query, [name])) == (part.oid, part.file)


def _write(part: Part, source: Connection, target: Connection, *, staged: bool) -> Copied:
    job = part.job
    # A crash that loses the commit loses the record of the part too.
    target.execute("SET statement_timeout = 0; BEGIN; SET LOCAL synchronous_commit = off")
    check_epoch(target, job.sync, job.epoch)
    if job.silent:
        require_silent_triggers(target)
    check_table(target, job.sync, part.table)
    if job.recorded:
        # First: an attempt whose answer was lost may have copied the part.
        is_new = target.execute(statement("copied"), [job.sync, part.oid, part.file, part.first, part.end]).fetchone()
        if is_new is None:
            query = load("trueup.verbs.sync", "copy.sql")["rows_of"]
            rows = one_value(target.execute(query, [job.sync, part.oid, part.file, part.first])) or 0
            target.execute("ROLLBACK")
            return Copied(str(part.table), rows, is_repeated=True)
    into = stage(target, part.table.target.name, part.table.target.columns) if staged else None
    rows = pipe(source, _rows_out(part), target, rows_in(part.table.target, into, binary=part.table.is_binary))
    if into is not None:
        insert_missing(target, part.table.target, into)
    if job.recorded:
        values = [rows, job.sync, part.oid, part.file, part.first]
        target.execute(load("trueup.verbs.sync", "copy.sql")["rows"], values)
    target.execute("COMMIT")
    return Copied(str(part.table), rows)


def _rows_out(part: Part) -> sql.Composed:
    pages: list[sql.Composable] = []
    if part.first:
        pages.append(sql.SQL("ctid >= {}::tid").format(sql.Literal(f"({part.first},0)")))
    if part.end is not None:
        pages.append(sql.SQL("ctid < {}::tid").format(sql.Literal(f"({part.end},0)")))
    return rows_out(
        part.table.target.columns,
        sql.SQL("ONLY {}").format(sql.Identifier(*part.relation)),
        sql.SQL(" AND ").join(pages) if pages else None,
        binary=part.table.is_binary,
    )
