"""All rows once: page ranges of the source in one exported snapshot, each COPY out to COPY in inside of a task.

A range is a range of pages, not of keys: whatever the key is, every page is read once and in order. That loses no row,
although rows move between pages: whoever moves a row after the snapshot touches its key, and all keys touched since
before the first snapshot are carried over by the rounds. Only a rewrite of the table moves rows untouched, and nobody
can rewrite it while the snapshot's session holds its lock; a copy that is taken up later sees the other file, and
starts that table anew. A range and the note that it is copied are one transaction of the target.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from trueup.db.connection import Connection
from trueup.db.node import connect, error_from_server, is_lost
from trueup.db.reader import borrow
from trueup.db.statements import load
from trueup.engine.work import Engine, Failure, Room, Tasks
from trueup.rows.write.copy import pipe, rows_in, rows_out
from trueup.rows.write.delete import delete_all
from trueup.rows.write.stage import stage
from trueup.rows.write.triggers import silence_triggers
from trueup.rows.write.upsert import insert_missing
from trueup.verbs.sync.marks import block, check_ours
from trueup.verbs.sync.model import REPLICA, SyncTable

if TYPE_CHECKING:
    from psycopg import sql

    from trueup.config.model import Node
    from trueup.engine.progress import Progress

# Bytes of a part: large enough that its sessions cost nothing, small enough to be done again after a kill.
PART_BYTES = 64 * 1024 * 1024
LEAST_BYTES = 4 * 1024 * 1024
Pages = tuple[int, "int | None"]
Done = dict[tuple[int, int], "list[Pages]"]
ATTEMPTS = 4
# So many bars fit onto a terminal.
BARS = 12


@dataclass(frozen=True)
class Job:
    """What all parts of a copy share."""

    sync: str
    source: Node
    target: Node
    snapshot: str
    application: str
    mode: str
    # Shown with every write, see `marks.take_over`.
    epoch: int
    # Taken up again in another snapshot: a row that moved meanwhile may be there already. It was touched, so the
    # rounds bring it; here it is left as it is.
    again: bool = False
    # Whether finished parts are noted; rounds that read a table anew do not.
    noted: bool = True


@dataclass(frozen=True)
class Part:
    """Some pages of a table; the last part of a table has no end."""

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
    """A part that is on the target now."""

    table: str
    rows: int


@contextmanager
def hold_snapshot(source: Connection, tables: Sequence[SyncTable]) -> Iterator[tuple[str, str]]:
    """A snapshot for the tasks, and where the log stood; the session keeps everybody from rewriting the tables."""
    source.execute("SET idle_in_transaction_session_timeout = 0; SET statement_timeout = 0")
    source.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
    try:
        names = sql.SQL(", ").join(sql.Identifier(*table.name) for table in tables)
        # Before the snapshot: a TRUNCATE after it would show the table empty.
        source.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(names))
        row: Any = source.execute(load("trueup.verbs.sync", "copy.sql")["position"]).fetchone()
        yield str(row[0]), str(row[1])
    finally:
        if not source.closed:
            source.execute("ROLLBACK")


def parts_of(
    source: Connection, job: Job, tables: Sequence[SyncTable], slots: int, done: Done | None = None
) -> list[Part]:
    """The tables cut into parts, large tables first, without the pages that are done; asked inside of the snapshot."""
    by_oid = {table.oid: table for table in tables}
    rows = source.execute(load("trueup.verbs.sync", "copy.sql")["leaves"], {"oids": list(by_oid)}).fetchall()
    total = sum(row[6] for row in rows)
    # Enough parts that no slot waits for the last one.
    wanted = max(LEAST_BYTES, min(PART_BYTES, total // (slots * 8 or 1)))
    parts: list[Part] = []
    for root, oid, schema, name, file, pages, size, is_heap in rows:
        step = max(1, int(wanted * pages / size)) if size and is_heap else max(1, pages)
        for first, end in cut(done.get((oid, file), []) if done else [], pages, step):
            parts.append(Part(job, by_oid[root], (schema, name), oid, file, first, end))
    return parts


def cut(done: Iterable[Pages], pages: int, step: int) -> list[Pages]:
    """The page ranges that are left between those that are done, in pieces; all of them together have no gap."""
    left: list[Pages] = []
    at: int | None = 0
    for first, end in sorted(done, key=lambda each: each[0]):
        if at is not None and first > at:
            left += _pieces(at, first, pages, step)
        at = None if at is None or end is None else max(at, end)
    if at is not None:
        left += _pieces(at, None, pages, step)
    return left


def _pieces(first: int, end: int | None, pages: int, step: int) -> list[Pages]:
    starts = list(range(first, pages if end is None else end, step)) or [first]
    return list(zip(starts, [*starts[1:], end], strict=True))


def read_done(target: Connection, sync: str) -> Done:
    """The pages that are copied, by table and file."""
    done: Done = {}
    for oid, file, first, end in target.execute(load("trueup.verbs.sync", "copy.sql")["done"], [sync]).fetchall():
        done.setdefault((oid, file), []).append((first, end))
    return done


def rewritten(source: Connection, tables: Sequence[SyncTable], done: Done) -> list[SyncTable]:
    """Tables whose pages were copied from a file that is no more: by TRUNCATE, VACUUM FULL, CLUSTER or ALTER TABLE."""
    by_oid = {table.oid: table for table in tables}
    rows = source.execute(load("trueup.verbs.sync", "copy.sql")["leaves"], {"oids": list(by_oid)}).fetchall()
    files = {row[1]: (row[0], row[4]) for row in rows}
    stale: dict[int, SyncTable] = {}
    for oid, file in done:
        root, now = files.get(oid, (0, 0))
        if root and now != file:
            stale[root] = by_oid[root]
    return list(stale.values())


def start_anew(target: Connection, job: Job, tables: Sequence[SyncTable], relations: Sequence[int]) -> None:
    """Empty tables on the target, and forget what was noted of their partitions."""
    with target.transaction():
        check_ours(target, job.sync, job.epoch)
        if job.mode == REPLICA:
            silence_triggers(target)
        for table in reversed(tables):
            delete_all(target, table.spec)
        target.execute(
            "DELETE FROM trueup.copied WHERE sync = %s AND relation = ANY(%s::oid[])", [job.sync, list(relations)]
        )


def copy(engine: Engine, parts: Sequence[Part], progress: Progress) -> int:
    """Run the parts on the engine; gives the number of rows. The first part that fails ends the copy with its error."""
    by_table: dict[str, int] = {}
    for part in parts:
        by_table[str(part.table)] = by_table.get(str(part.table), 0) + 1
    progress.stage("copy", len(parts))
    bars = sorted(by_table, key=lambda name: -by_table[name])[:BARS] if len(by_table) > 1 else []
    for name in bars:
        progress.stage(name, by_table[name])
    rows = 0
    for result in engine.run(copy_part, Tasks(parts)):
        if isinstance(result, Failure):
            raise result.error
        rows += result.rows
        progress.advance(rows=result.rows, stage="copy")
        if result.table in bars:
            progress.advance(rows=result.rows, stage=result.table)
    return rows


def copy_part(part: Part, room: Room) -> Iterable[Copied]:
    """One part, in a task; a lost connection is tried again, for the note says whether it had arrived."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return [Copied(str(part.table), _copy_once(part))]
        except Exception as error:
            if attempt == ATTEMPTS or not is_lost(error):
                raise _named(error, part) from None
    raise AssertionError("unreachable")


def _named(error: BaseException, part: Part) -> Exception:
    # Either side may have spoken; a message of the server seldom says which, and the cure is the same.
    return error_from_server(error, part.job.target, table=str(part.table), block=str(part))


def _copy_once(part: Part) -> int:
    job = part.job
    with borrow(job.source, job.snapshot, application=job.application, retries=0) as reader:
        source = reader.session()
        target = connect(job.target, application=job.application, read_only=False)
        try:
            try:
                return _write(part, source, target, aside=False)
            except (psycopg.errors.UniqueViolation, psycopg.errors.ExclusionViolation):
                if not job.again:
                    raise
                target.execute("ROLLBACK")
                # The source was in the middle of a COPY.
                reader.close()
                return _write(part, reader.session(), target, aside=True)
        except BaseException:
            reader.close()
            raise
        finally:
            target.close()


def _write(part: Part, source: Connection, target: Connection, *, aside: bool) -> int:
    job = part.job
    # A commit that a crash takes back takes the note of the part back with it.
    target.execute("SET statement_timeout = 0; SET synchronous_commit = off; BEGIN")
    check_ours(target, job.sync, job.epoch)
    if job.mode == REPLICA:
        silence_triggers(target)
    if job.noted:
        # First: an attempt whose answer was lost may have done it.
        noted = target.execute(block("copied"), [job.sync, part.oid, part.file, part.first, part.end]).fetchone()
        if noted is None:
            target.execute("ROLLBACK")
            return 0
    into = stage(target, part.table.target.name, part.table.target.columns) if aside else None
    rows = pipe(source, _rows_out(part), target, rows_in(part.table.target, into, binary=part.table.is_binary))
    if into is not None:
        insert_missing(target, part.table.target, into)
    if job.noted:
        values = [rows, job.sync, part.oid, part.file, part.first]
        target.execute(load("trueup.verbs.sync", "copy.sql")["rows"], values)
    target.execute("COMMIT")
    return rows


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
