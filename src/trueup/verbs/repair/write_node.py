"""Write one node in one transaction: all rows or none.

Every row that is replaced or deleted is compared with what was read, by its guard (see `layout`), under its lock. A row
that changed in between is left as it is and listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from psycopg import sql
from psycopg.errors import ForeignKeyViolation, UniqueViolation

from trueup.config.model import Node
from trueup.db.connection import Connection
from trueup.db.durable import durable_transaction
from trueup.db.lock_holders import limit_lock_waits, named_lock_holders
from trueup.db.names import display_name
from trueup.db.node import connect, error_from_server
from trueup.engine.progress import Progress
from trueup.errors import QueryError, TrueupError
from trueup.rows.keys import KeyValues
from trueup.rows.spec import TableSpec
from trueup.rows.write.copy import check_arrived, rows_in, send_lines
from trueup.rows.write.copy_text import key_of
from trueup.rows.write.guarded import (
    KEYS_PER_STATEMENT,
    Expected,
    delete_unchanged,
    delete_unchanged_together,
    has_rows,
    lock_unchanged,
    read_hashes,
)
from trueup.rows.write.origin import origin_transaction
from trueup.rows.write.references import check_references, lock_for_deferrable
from trueup.rows.write.stage import stage
from trueup.rows.write.target import Target
from trueup.rows.write.triggers import require_silent_triggers
from trueup.rows.write.upsert import upsert
from trueup.verbs.repair.identity import check_same_table
from trueup.verbs.repair.layout import Layout
from trueup.verbs.repair.modes import Act
from trueup.verbs.repair.spool import Spool
from trueup.verbs.repair.undo_file import NOT_WRITTEN, UndoFile
from trueup.verbs.repair.writes import Writes

_DROPPED = "a trigger or a rule of the table interferes: disable it, or run without --fire-triggers"


@dataclass
class Written:
    """What was written to a table; `changed`: keys of rows that changed after they were read and were left."""

    node: str
    counts: Counter[Act] = field(default_factory=Counter)
    changed: list[KeyValues] = field(default_factory=list)


@dataclass(frozen=True)
class NodeWork:
    """What is written to one table on one node, and how."""

    # The number of the table in the undo file.
    number: int
    node: Node
    layout: Layout
    spool: Spool
    silent: bool
    application: str
    # Whether triggers or rules may change what is written.
    watched: bool
    under_origin: bool
    lock_timeout: float
    # Another session of the node, which asks who holds a lock.
    watcher: Connection

    @property
    def shown(self) -> str:
        """The name of the table, for messages."""
        return display_name(self.layout.spec.schema, self.layout.spec.table)

    @property
    def guard(self) -> TableSpec:
        """The table with the columns of the guard hash."""
        return self.layout.guard(self.node.name)

    def target(self, act: Act) -> Target:
        """Return the columns of a line that is inserted, or of a line that replaces a row."""
        own = self.layout.own[self.node.name] if act == "update" else ()
        columns = tuple(column.name for column in (*self.layout.carried, *own))
        return Target(self.guard, columns, self.layout.fixed[self.node.name])

    @property
    def copies(self) -> list[tuple[Act, ...]]:
        """The acts that one COPY can carry: both, where inserts and updates have the same columns."""
        return [("insert",), ("update",)] if self.layout.own[self.node.name] else [("update", "insert")]


def write_node(
    works: Sequence[NodeWork], undo: UndoFile, progress: Progress, opened: list[Connection]
) -> list[Written]:
    """Write all tables of a node and commit; an error leaves the node as it was.

    The session is added to `opened`, so that another thread can cancel it.
    """
    first, current = works[0], works[0]
    connection = connect(first.node, application=first.application, read_only=False)
    opened.append(connection)
    try:
        connection.execute("SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0")
        with _lock_waits(connection, works), _transaction(connection, first):
            changed = []
            for current in works:
                changed.append((_replace if current.silent else _update_in_place)(connection, current, progress))
            for current, left in zip(works, changed, strict=True):
                if current.silent:
                    check_references(connection, current.guard, partial(_keys, current.spool, left))
            for current, left in zip(works, changed, strict=True):
                _note_unknown(connection, current, undo, left)
                check_same_table(connection, current.layout.identities[current.node.name], current.layout.spec)
    except TrueupError as error:
        error.node = error.node or first.node.name
        error.table = error.table or current.shown
        raise
    except Exception as error:
        raise error_from_server(error, first.node, table=current.shown) from None
    finally:
        connection.close()
    return [_written(work, left) for work, left in zip(works, changed, strict=True)]


def _written(work: NodeWork, changed: set[bytes]) -> Written:
    counts = work.spool.counts if not changed else Counter(act for _, act in _acts(work.spool, changed))
    return Written(work.node.name, counts, [key_of(name) for name in sorted(changed)])


@contextmanager
def _lock_waits(connection: Connection, works: Sequence[NodeWork]) -> Iterator[None]:
    work = works[0]
    table = work.shown if len(works) == 1 else f"one of {len(works)} tables"
    connection.execute(limit_lock_waits(work.lock_timeout))
    with named_lock_holders(
        work.node,
        connection,
        table,
        seconds=work.lock_timeout,
        effect="nothing was written on this node",
        watcher=work.watcher,
    ):
        yield


def _transaction(connection: Connection, work: NodeWork) -> AbstractContextManager[None]:
    return origin_transaction(connection) if work.under_origin else durable_transaction(connection)


def _acts(spool: Spool, changed: set[bytes]) -> Iterator[tuple[KeyValues, Act]]:
    """Yield key and act of every row that is written."""
    for writes in spool:
        for key, name, act in zip(writes.keys, writes.ids, writes.acts, strict=True):
            if name not in changed:
                yield key, act


def _keys(spool: Spool, changed: set[bytes]) -> Iterator[tuple[list[KeyValues], list[KeyValues]]]:
    """Yield batches of keys whose rows were written and of keys whose rows were deleted."""
    acts = _acts(spool, changed)
    while batch := list(islice(acts, KEYS_PER_STATEMENT)):
        yield [key for key, act in batch if act != "delete"], [key for key, act in batch if act == "delete"]


def _replace(connection: Connection, work: NodeWork, progress: Progress) -> set[bytes]:
    """Delete all keys, then copy the rows in: no order is needed, and rows can swap unique values."""
    require_silent_triggers(connection)
    lock_for_deferrable(connection, work.guard)
    changed: set[bytes] = set()
    for writes in work.spool:
        changed |= delete_unchanged(connection, work.guard, writes.expected())
        progress.advance(len(writes.keys))
    for acts in work.copies:
        _copy(connection, rows_in(work.target(acts[0])), work, acts, changed)
    return changed


def _copy(connection: Connection, into: sql.Composed, work: NodeWork, acts: Sequence[Act], changed: set[bytes]) -> int:
    """COPY the lines of these acts and return their number; raise if not all of them arrived."""
    sent = 0

    def lines() -> Iterator[bytes]:
        nonlocal sent
        for writes in work.spool:
            batch = [
                line
                for name, act, line in zip(writes.ids, writes.acts, writes.after, strict=True)
                if line is not None and act in acts and name not in changed
            ]
            sent += len(batch)
            yield b"".join(batch)

    arrived = send_lines(connection, into, lines())
    check_arrived(sent, arrived)
    return sent


def _update_in_place(connection: Connection, work: NodeWork, progress: Progress) -> set[bytes]:
    """Write while triggers and foreign keys fire: rows are updated in place, so no row loses its parent."""
    changed: set[bytes] = set()
    for writes in work.spool:
        changed |= lock_unchanged(connection, work.guard, writes.expected("update"))
        inserts = writes.expected("insert")
        changed |= read_hashes(connection, work.guard, inserts.keys).keys() & set(inserts.ids)
        progress.advance(len(writes.keys))
    delete_last = False
    try:
        with connection.transaction():
            changed |= _delete(connection, work)
    except ForeignKeyViolation:
        # Rows of this table may refer to a row that is deleted, and be updated themselves: update them first.
        delete_last = True
    if not work.spool.counts["update"]:
        # Inserts alone need no right but INSERT.
        _copy(connection, rows_in(work.target("insert")), work, ("insert",), changed)
    for acts in work.copies if work.spool.counts["update"] else ():
        _upsert(connection, work, acts, changed)
    if delete_last:
        changed |= _delete(connection, work)
    return changed


def _delete(connection: Connection, work: NodeWork) -> set[bytes]:
    """Delete all rows that go in one statement: they may refer to each other."""
    batches = [writes.expected("delete") for writes in work.spool]
    expected = Expected(
        [name for batch in batches for name in batch.ids],
        [key for batch in batches for key in batch.keys],
        [value for batch in batches for value in batch.hashes],
    )
    return delete_unchanged_together(connection, work.guard, expected)


def _upsert(connection: Connection, work: NodeWork, acts: Sequence[Act], changed: set[bytes]) -> None:
    target = work.target(acts[0])
    staged = stage(connection, target.name, target.columns)
    sent = _copy(connection, rows_in(target, staged), work, acts, changed)
    try:
        arrived = sum(upsert(connection, target, staged)) if sent else 0
    except UniqueViolation as error:
        raise QueryError(
            f"{error.diag.message_primary} ({error.diag.message_detail})",
            sqlstate="23505",
            cure="if rows swap unique values, run without --fire-triggers, as a role that may set"
            " session_replication_role: rows are then deleted and copied",
        ) from None
    check_arrived(sent, arrived)


def _note_unknown(connection: Connection, work: NodeWork, undo: UndoFile, changed: set[bytes]) -> None:
    """Add to the undo file the hashes of written rows that were not known before, or that a trigger changed."""
    for writes in work.spool:
        is_known = not changed and None not in writes.made
        if is_known and (not work.watched or has_rows(connection, work.guard, writes.expected_after())):
            continue
        undo.after(work.number, work.node.name, _hashes_now(connection, work.guard, writes, changed))


def _hashes_now(
    connection: Connection, spec: TableSpec, writes: Writes, changed: set[bytes]
) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield id and hash of the rows as they are now in this transaction; raise if a row was not written or deleted."""
    hashes = read_hashes(connection, spec, writes.keys)
    for name, act in zip(writes.ids, writes.acts, strict=True):
        if name in changed:
            yield name, NOT_WRITTEN
            continue
        if (act == "delete") == (name in hashes):
            what = "was not deleted" if act == "delete" else "did not arrive"
            raise TrueupError(f"the row ({', '.join(key_of(name))}) {what}", cure=_DROPPED)
        yield name, hashes.get(name)
