"""A small round: read the touched keys and their current rows, write the rows to the target, delete the log entries.

It takes five round trips, whatever the number of tables: (1) read the source's log position, then the entries in one
snapshot; (2) commit the token of the round on the source; (3) read the rows, and end the snapshot, unless a check still
needs it; (4) in one transaction of the target, delete all keys, insert the rows, record the position and the token;
(5) delete exactly these entries on the source. The tokens show later that neither database went back (`history`). After
a kill at any point the entries still exist, and copying a key twice changes nothing. Rows travel as text that one
server writes and the other reads: no value is converted on the way.

A part of the log may not fit alone: of two rows that swapped a unique value, one cannot be written without the other.
Then the round is repeated with all entries. That makes the target equal to the snapshot, so it always fits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import psycopg
from psycopg import sql

from trueup.capture.triggers.readers import Mark
from trueup.db.connection import Connection, Cursor, one_row, one_value
from trueup.db.durable import commit_durably
from trueup.db.node import error_from_server
from trueup.db.statements import load
from trueup.db.table_lock import ATTEMPT_MS, lock_shared
from trueup.errors import QueryError, TrueupError
from trueup.rows.write.copy import check_arrived
from trueup.rows.write.delete import delete_all, delete_keys
from trueup.rows.write.insert import insert_rows, select_rows
from trueup.rows.write.key_lists import KeyList, key_list
from trueup.verbs.sync import changelog, state
from trueup.verbs.sync.link import Link, Shape, shape_query
from trueup.verbs.sync.model import Outdated, Round, SyncTable

# Maximum keys of a small round; more are spread over tasks.
SMALL = 60_000
# Maximum bytes of rows in memory, estimated from the average row of each table.
SMALL_BYTES = 48 * 1024 * 1024
# Maximum bytes on the disk, where values may be compressed, of tables that are copied as a whole.
SMALL_RELOAD_BYTES = 8 * 1024 * 1024
# The rows are too long for one value: program limit exceeded.
TOO_LONG = "54000"
# Assumed bytes per row of a table that was never analyzed.
UNKNOWN_ROW = 400


@dataclass(frozen=True)
class Changes:
    """The entries of the change log of a round, read in a snapshot that is still open."""

    # The log position of the source before the snapshot, and its time.
    position: str
    at: datetime
    # The numbers of the entries, as array literals.
    entries: tuple[str, ...]
    # By the number of the table: the touched keys, and the tables to be copied as a whole.
    keys: dict[int, KeyList]
    reload: tuple[int, ...]
    # Errors that the triggers recorded.
    errors: tuple[str, ...]
    # Keys in the log beyond those of this round, counted once per touch; and whether the round takes all entries.
    pending: int
    is_all: bool
    # Age of the oldest entry in seconds.
    lag: float
    # The keys one by one, where asked for.
    texts: dict[int, list[str]] = field(default_factory=dict)
    # The token of the round.
    mark: Mark = field(default_factory=Mark)
    # The size of the tables to be copied as a whole.
    reload_bytes: int = 0
    # See `Round.is_outdated`.
    is_outdated: bool = False

    @property
    def taken(self) -> int:
        """The number of keys of the round."""
        return sum(keys.count for keys in self.keys.values())


class Rewritten(TrueupError):
    """A table was rewritten after the snapshot of a round, which shows it empty: repeat the round."""


class TooLarge(TrueupError):
    """The rows of a round must pass through the driver, and are too many for that: nothing was written."""


def _no_check(changes: Changes) -> None:
    """Accept any changes."""


@dataclass(frozen=True)
class Checks:
    """Functions that a round calls for its caller."""

    # Called when the rows are read, while the target writes them: the session with the source is free then.
    rows_read: Callable[[Changes], None] = _no_check
    # Called when the target has committed the rows and the snapshot of the source is still open. If it raises, the
    # entries stay in the change log.
    applied: Callable[[Changes], None] = _no_check


NO_CHECKS = Checks()
_IDLE = psycopg.pq.TransactionStatus.IDLE


def read_changes(
    link: Link, limit: int | None, *, texts: bool = False, locked: Iterable[int] = (), held: bool = False
) -> Changes:
    """Open a snapshot of the source and read the change log: at most `limit` keys, or all of them.

    With `texts` the keys are also returned one by one, to be dealt to tasks. Tables to be copied as a whole are locked
    before the snapshot: after another TRUNCATE it would show them empty. So are those with the numbers `locked`. With
    `held` the session has locked all tables in a transaction that has no snapshot yet.
    """
    tables = link.by_number()
    changes, numbers = read_log(link, limit, texts, sorted(locked), held=held), frozenset(locked)
    while not held and not numbers >= set(changes.reload):
        link.source.execute("ROLLBACK")
        numbers |= set(changes.reload)
        changes = read_log(link, limit, texts, sorted(numbers))
    if not changes.reload:
        return changes
    oids = [tables[number].oid for number in changes.reload]
    size = link.source.execute(load("trueup.verbs.sync", "round.sql")["size"], {"oids": oids})
    return replace(changes, reload_bytes=one_value(size))


def read_log(link: Link, limit: int | None, texts: bool, locked: Sequence[int], *, held: bool = False) -> Changes:
    """Read the change log in a new snapshot, with locks on the tables of these numbers."""
    tables = link.by_number()
    statements = load("trueup.verbs.sync", "round.sql")
    numbers = [table.number for table in link.tables]
    listed = [table.number for table in link.tables if texts or len(table.spec.key) > 1]
    taken = sql.SQL(statements["taken" if limit is None else "taken_bounded"]).format(log=link.log)
    entries = sql.SQL(statements["entries"]).format(taken=taken)

    def ask() -> tuple[Cursor, Cursor, Cursor]:
        return (
            link.source.execute(*shape_query(link.name, link.watched)),
            link.source.execute(sql.SQL(statements["waiting"]).format(log=link.log), {"sources": numbers}),
            link.source.execute(entries, {"listed": listed, "limit": limit, "sources": numbers}),
        )

    # In a transaction of its own: all commits before this position are in the later snapshot.
    if held:
        position = link.marker.execute(statements["position"])
    else:
        with link.source.pipeline():
            link.source.execute("BEGIN")
            position = link.source.execute(statements["position"])
            link.source.execute("COMMIT")
            link.source.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            if not locked:
                shape, waiting, taken_entries = ask()
        if locked:
            lock_shared(link.source, link.source_node, [tables[number].name for number in locked])
            # An application may wait for these tables, and hold another one that the round reads: see `Runner`.
            link.source.execute(f"SET LOCAL lock_timeout = {ATTEMPT_MS}")
    if held or locked:
        with link.source.pipeline():
            shape, waiting, taken_entries = ask()
    present = Shape(*one_row(shape))
    if replace(present, others=link.shape.others) != link.shape:
        # DROP, DETACH and ATTACH of a partition, and a rewrite, fire no trigger. When the link is opened, these rows
        # get into the change log.
        raise Outdated(
            ["a synced table, a partition or a trigger of the change log was changed since the sync opened it"],
            cure="run trueup sync run again: it names what was changed; this round wrote nothing",
            node=link.source_node.name,
        )
    rows = taken_entries.fetchall()
    changes = replace(
        _changes(link, one_row(position), one_row(waiting), rows), is_outdated=present.others != link.shape.others
    )
    return replace(changes, texts={row[0]: row[4] for row in rows if row[4]}) if texts else changes


def _changes(
    link: Link, position: tuple[Any, ...], waiting: tuple[Any, ...], rows: Sequence[tuple[Any, ...]]
) -> Changes:
    if waiting[3] is not None:
        raise changelog.full(link.name, waiting[3], link.source_node.name)
    tables = link.by_number()
    keys: dict[int, KeyList] = {}
    problems: list[str] = []
    for number, _, count, literal, listed, _, errors, _, _ in rows:
        table = tables[number]
        if count:
            keys[number] = key_list(table.spec, listed) if listed is not None else KeyList(count, (literal,))
        problems += [f"{table}: {error}" for error in errors]
    return Changes(
        str(position[0]),
        position[1],
        tuple(row[1] for row in rows),
        keys,
        tuple(row[0] for row in rows if row[5]),
        tuple(problems),
        max(0, int(waiting[1]) - sum(row[8] for row in rows)),
        int(waiting[0]) == sum(row[7] for row in rows),
        float(waiting[2]),
    )


def begin(link: Link, changes: Changes) -> Changes:
    """Commit the token of the round on the source, before the target writes; return the changes with it.

    It is committed after the snapshot was taken: a server that has the token has all rows of the round.
    """
    try:
        return replace(changes, mark=link.reader.begin(link.marker))
    except psycopg.Error as error:
        raise error_from_server(error, link.source_node) from None


def is_small(link: Link, changes: Changes, limit: int) -> bool:
    """Return whether the rows may pass through the driver: at most `limit` keys, and only small tables as a whole."""
    tables = link.by_number()
    size = sum(_bytes(tables[number], keys.count) for number, keys in changes.keys.items())
    return changes.reload_bytes <= SMALL_RELOAD_BYTES and changes.taken <= limit and size <= SMALL_BYTES


def _bytes(table: SyncTable, rows: int) -> float:
    """Return the estimated size of `rows` rows of a table, at most the size of the table."""
    return min(table.bytes, rows * _row_bytes(table))


def _row_bytes(table: SyncTable) -> float:
    return max(1.0, table.bytes / table.rows) if table.rows else UNKNOWN_ROW


def rewritten(connection: Connection, tables: Iterable[SyncTable]) -> Cursor:
    """Select OID and name of the tables rewritten after the snapshot; call it when they are read, and so locked."""
    oids = [table.oid for table in tables]
    return connection.execute(load("trueup.verbs.sync", "round.sql")["rewritten"], {"oids": oids})


def refuse_rewritten(cursor: Cursor) -> None:
    """Raise if a table was rewritten after the snapshot."""
    if names := [name for _, name in cursor.fetchall()]:
        raise Rewritten(f"rewritten while a round read it: {', '.join(names)}", cure="run the same command again")


def _written(changes: Changes) -> dict[int, KeyList | None]:
    """Return what a small round writes by table number: the keys, or None for all rows."""
    return {**changes.keys, **dict.fromkeys(changes.reload)}


def read_rows(link: Link, changes: Changes, *, last: bool = False) -> dict[int, tuple[int, str | None]]:
    """Return, by table number, the number of rows of the keys and all of these rows as one array literal.

    With `last` the snapshot ends here: a target that does not answer must not keep the locks on the tables.
    """
    tables = link.by_number()
    # One number of a keyless table may be that of all its rows.
    most = {
        number: max(1, min(SMALL, int(SMALL_BYTES / _row_bytes(tables[number]))))
        for number, keys in _written(changes).items()
        if keys is not None and tables[number].spec.is_keyless
    }
    with link.source.pipeline():
        cursors = {
            number: select_rows(link.source, tables[number].spec, tables[number].row, keys, most=most.get(number))
            for number, keys in _written(changes).items()
        }
        stale = rewritten(link.source, [tables[number] for number in _written(changes)])
        if last:
            link.source.execute("COMMIT")
    refuse_rewritten(stale)
    rows = {number: one_row(cursor) for number, cursor in cursors.items()}
    for number, (count, _) in rows.items():
        if number in most and count > most[number]:
            raise QueryError(f"more than {most[number]:,} rows of {tables[number]} have these keys", sqlstate=TOO_LONG)
    return {number: (count, literal) for number, (count, literal) in rows.items()}


def apply_rows(link: Link, changes: Changes, rows: dict[int, tuple[int, str | None]], began: float) -> tuple[int, bool]:
    """Delete all keys and insert all rows in one transaction of the target; return the rows, and whether to stop."""
    tables = link.by_number()
    with checked_transaction(link, [tables[number] for number in _written(changes)]):
        for number, keys in _written(changes).items():
            if keys is None:
                delete_all(link.target, tables[number].spec)
            else:
                delete_keys(link.target, tables[number].spec, keys)
        inserts = [
            (insert_rows(link.target, tables[number].target, literal), count, tables[number])
            for number, (count, literal) in rows.items()
            if literal is not None
        ]
        recorded = record(link, changes, began)
    for cursor, count, table in inserts:
        # If rows are missing, the entries stay in the change log: the next round copies them again.
        check_arrived(count, cursor.rowcount, node=link.target_node.name, table=str(table))
    return sum(count for count, _ in rows.values()), bool(one_value(recorded))


@contextmanager
def checked_transaction(link: Link, written: Sequence[SyncTable] | None = None) -> Iterator[None]:
    """Send the statements of the block as one transaction of the target, in one round trip, after the epoch check.

    `written`: the tables whose rows the block writes; see `check_tables`.
    """
    try:
        with link.target.pipeline():
            link.target.execute("BEGIN")
            link.target.execute(state.statement("check_epoch"), {"sync": link.name, "epoch": link.epoch})
            if written is not None:
                check_tables(link, written)
            yield
            # The entries of the change log are deleted after this commit.
            commit_durably(link.target)
            link.target.execute("COMMIT")
    except psycopg.Error as error:
        with suppress(psycopg.Error):
            link.target.execute("ROLLBACK")
        state.raise_if_refused(error, link.name)
        raise


def _set_position(link: Link, changes: Changes) -> None:
    values = {"sync": link.name, "lsn": changes.position, "at": changes.at}
    link.target.execute(state.statement("set_position"), values)


def record(link: Link, changes: Changes, began: float) -> Cursor:
    """Record the position and the numbers of a round, in its transaction; the cursor returns whether to stop."""
    if changes.is_all:
        # After a part of the entries, the target lacks commits before this position.
        _set_position(link, changes)
    state.set_mark(link.target, link.name, changes.mark)
    seconds = max(time.monotonic() - began, 1e-6)
    facts = {
        "sync": link.name,
        "keys": changes.taken,
        "ms": 1000 * seconds,
        "lag": changes.lag,
        "pending": changes.pending,
        "rate": changes.taken / seconds,
    }
    names, shape = link.target_shape
    link.target.execute(state.statement("check_names"), {"names": names, "shape": shape})
    return link.target.execute(state.statement("count_round"), facts)


def check_tables(link: Link, written: Sequence[SyncTable]) -> None:
    """Lock the tables to write on the target; let the transaction fail if a table is not as when the link was opened.

    The locks come first: until the end of the transaction, their owners cannot add code that would run with the rights
    of this session.
    """
    names, shape = link.target_shape
    values = {"sync": link.name, "names": names, "shape": shape, "written": [table.quoted_name for table in written]}
    link.target.execute(state.statement("check_tables"), values)


def record_empty(link: Link, changes: Changes) -> bool:
    """Record the position after a round without entries; return whether to stop."""
    with checked_transaction(link, ()):
        _set_position(link, changes)
        stop = link.target.execute(state.statement("count_empty_round"), {"sync": link.name})
    return bool(one_value(stop))


def finish(link: Link, changes: Changes, checks: Checks) -> None:
    """Check what was applied, end the snapshot, and delete exactly the entries of the round."""
    try:
        checks.applied(changes)
    except BaseException:
        if changes.entries and not link.marker.broken:
            link.reader.done(link.marker, changes.mark)
        raise
    query = sql.SQL(load("trueup.verbs.sync", "round.sql")["delete"]).format(log=link.log)
    is_open = link.source.info.transaction_status != _IDLE
    with link.source.pipeline():
        if is_open:
            link.source.execute("COMMIT")
        if changes.entries:
            link.source.execute("BEGIN")
            link.reader.done(link.source, changes.mark)
            for numbers in changes.entries:
                link.source.execute(query, (numbers,))
            link.source.execute("COMMIT")


def small_round(link: Link, changes: Changes, began: float, checks: Checks = NO_CHECKS) -> Round:
    """Copy the rows through the driver, in one transaction of the target."""
    try:
        source_rows = read_rows(link, changes, last=checks is NO_CHECKS)
        checks.rows_read(changes)
        rows, stop = apply_rows(link, changes, source_rows, began)
    except Exception as error:
        raise link.error_from_server(error) from error
    finish(link, changes, checks)
    return replace(round_of(link, changes, began), rows=rows, stop_asked=stop)


def round_of(link: Link, changes: Changes, began: float) -> Round:
    """Return what a round did, without the number of rows."""
    tables = link.by_number()
    return Round(
        keys=changes.taken,
        tables=tuple(str(tables[number]) for number in changes.keys),
        reloaded=tuple(str(tables[number]) for number in changes.reload),
        pending=changes.pending,
        lag=changes.lag,
        milliseconds=1000 * (time.monotonic() - began),
        position=changes.position,
        is_outdated=changes.is_outdated,
    )
