"""The writes of one node, in one transaction: all of them, or none.

The rows were read a moment ago, and somebody may have changed one since: every row that goes is compared with what was
read, by its hash, under the lock that its deletion takes. What is not the same any more is left alone and listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from psycopg import Rollback, sql
from psycopg.errors import ForeignKeyViolation, UniqueViolation

from trueup.config.model import Node
from trueup.db.connection import Connection, one_row
from trueup.db.names import display_name
from trueup.db.node import connect, error_from_server
from trueup.errors import QueryError, TrueupError
from trueup.rows.encode import row_hash
from trueup.rows.fetch import among
from trueup.rows.keys import KeyValues, canonical, key_texts
from trueup.rows.spec import TableSpec
from trueup.rows.write.apply import KEYS_A_STATEMENT, Target, batches, rows_in, silence_triggers, stage, upsert
from trueup.verbs.repair.layout import Layout
from trueup.verbs.repair.lines import key_id, key_of
from trueup.verbs.repair.modes import Act
from trueup.verbs.repair.pile import Pile
from trueup.verbs.repair.prepare import Writes
from trueup.verbs.repair.references import check_references
from trueup.verbs.repair.undo_file import NOT_WRITTEN, UndoFile

if TYPE_CHECKING:
    from psycopg import sql

    from trueup.engine.progress import Progress

_KEPT_OUT = "a trigger or a rule of the table keeps rows out: switch it off, or run without --fire-triggers"


@dataclass
class Written:
    """What was done on a node; `moved`: keys whose rows changed between reading and writing, and so were left."""

    node: str
    counts: Counter[Act] = field(default_factory=Counter)
    moved: list[KeyValues] = field(default_factory=list)


@dataclass(frozen=True)
class NodeWork:
    """What is written on one node, and how."""

    node: Node
    layout: Layout
    pile: Pile
    silent: bool
    application: str
    # Whether triggers may change what is written.
    is_watched: bool

    @property
    def guard(self) -> TableSpec:
        """The table, with the hash by which a row is known again."""
        return self.layout.guard(self.node.name)

    def target(self, act: Act) -> Target:
        """The columns of a line that is inserted, or of one that takes a row's place."""
        own = self.layout.own[self.node.name] if act == "update" else ()
        columns = tuple(column.name for column in (*self.layout.carried, *own))
        return Target(self.guard, columns, self.layout.fixed[self.node.name])


def write_node(work: NodeWork, undo: UndoFile, progress: Progress, opened: list[Any]) -> Written:
    """Write all that a node gets, and commit; after an error nothing of it is there. `opened`: whom to cancel."""
    spec = work.guard
    shown = display_name(spec.schema, spec.table)
    written = Written(work.node.name)
    connection = connect(work.node, application=work.application, read_only=False)
    opened.append(connection)
    try:
        connection.execute("SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0")
        with connection.transaction():
            moved = (_replace if work.silent else _in_order)(connection, work, progress)
            if work.silent:
                check_references(connection, spec, partial(_keys, work.pile, moved))
            _note_unknown(connection, work, undo, moved)
        written.moved = [key_of(key) for key in sorted(moved)]
        written.counts = work.pile.counts if not moved else Counter(act for _, act in _acts(work.pile, moved))
    except TrueupError as error:
        error.node = error.node or work.node.name
        error.table = error.table or shown
        raise
    except Exception as error:
        raise error_from_server(error, work.node, table=shown) from None
    finally:
        connection.close()
    return written


def _acts(pile: Pile, moved: set[bytes]) -> Iterator[tuple[KeyValues, Act]]:
    """Key and act of everything that is written."""
    for writes in pile:
        for key, mine, act in zip(writes.keys, writes.ids, writes.acts, strict=True):
            if mine not in moved:
                yield key, act


def _keys(pile: Pile, moved: set[bytes]) -> Iterator[tuple[list[KeyValues], list[KeyValues]]]:
    """Portions of keys whose rows were written, and of keys whose rows are gone."""
    acts = _acts(pile, moved)
    while some := list(islice(acts, KEYS_A_STATEMENT)):
        yield [key for key, act in some if act != "delete"], [key for key, act in some if act == "delete"]


def _replace(connection: Connection, work: NodeWork, progress: Progress) -> set[bytes]:
    """All keys are deleted, then the rows copied in: no order matters, and unique values may change places."""
    if not silence_triggers(connection):
        raise QueryError("the right to set session_replication_role was taken away", sqlstate="42501")
    moved: set[bytes] = set()
    for writes in work.pile:
        moved |= _delete_known(connection, work.guard, writes)
        progress.advance(len(writes.keys))
    for acts in _kinds(work):
        _copy(connection, rows_in(work.target(acts[0])), work, acts, moved)
    return moved


def _kinds(work: NodeWork) -> list[tuple[Act, ...]]:
    """Inserts and updates go together where they have the same columns."""
    return [("insert",), ("update",)] if work.layout.own[work.node.name] else [("update", "insert")]


def _delete_known(connection: Connection, spec: TableSpec, writes: Writes) -> set[bytes]:
    """Delete the rows of these keys that are as they were read; gives the keys of the others, which stay."""
    if _delete_all_known(connection, spec, writes):
        return set()
    wanted = dict(zip(writes.ids, zip(writes.keys, writes.guards, strict=True), strict=True))
    moved: set[bytes] = set()
    while wanted:
        wrong: set[bytes] = set()
        with connection.transaction() as savepoint:
            seen = _delete(connection, spec, [key for key, _ in wanted.values()])
            wrong = {key for key, (_, guard) in wanted.items() if seen.get(key) != guard}
            if wrong & seen.keys():
                raise Rollback(savepoint)
        moved |= wrong
        if not wrong & seen.keys():
            break
        wanted = {key: each for key, each in wanted.items() if key not in wrong}
    return moved


def _delete_all_known(connection: Connection, spec: TableSpec, writes: Writes) -> bool:
    """Delete the rows of these keys if every one of them is as it was read; otherwise none.

    The node sums up the hashes of what it deletes: as for a block, an equal count and sum mean equal rows.
    """
    query = sql.SQL(
        "WITH gone AS (DELETE FROM {} WHERE {} RETURNING {} AS hash) SELECT count(*), coalesce(sum(hash), 0) FROM gone"
    ).format(sql.Identifier(spec.schema, spec.table), among(spec, writes.keys), row_hash(spec))
    with connection.transaction() as savepoint:
        if tuple(one_row(connection.execute(query))) == _digest(writes.guards):
            return True
        raise Rollback(savepoint)
    return False


def _digest(hashes: Sequence[bytes | None]) -> tuple[int, int]:
    numbers = [int(each) for each in hashes if each is not None]
    return len(numbers), sum(numbers)


def _delete(connection: Connection, spec: TableSpec, keys: Sequence[KeyValues]) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for some in batches(keys):
        query = sql.SQL("DELETE FROM {} WHERE {} RETURNING {}, {}::text").format(
            sql.Identifier(spec.schema, spec.table), among(spec, some), key_texts(spec), row_hash(spec)
        )
        found.update(_by_id(spec, connection.execute(query).fetchall()))
    return found


def _by_id(spec: TableSpec, rows: Sequence[Sequence[str]]) -> dict[bytes, bytes]:
    return {key_id(canonical(spec, row[:-1])): row[-1].encode() for row in rows}


def _copy(connection: Connection, into: sql.Composed, work: NodeWork, acts: Sequence[Act], moved: set[bytes]) -> int:
    """COPY the lines of these acts; every one of them must arrive."""
    sent = 0
    with connection.cursor() as cursor:
        with cursor.copy(into) as sink:
            for writes in work.pile:
                lines = [
                    line
                    for key, act, line in zip(writes.ids, writes.acts, writes.after, strict=True)
                    if line is not None and act in acts and key not in moved
                ]
                sent += len(lines)
                sink.write(b"".join(lines))
        if cursor.rowcount != sent:
            raise TrueupError(f"{sent} rows were sent and {cursor.rowcount} arrived", cure=_KEPT_OUT)
    return sent


def _in_order(connection: Connection, work: NodeWork, progress: Progress) -> set[bytes]:
    """Triggers fire and foreign keys are checked: rows are updated where they are, so that nobody loses a parent."""
    moved: set[bytes] = set()
    for writes in work.pile:
        moved |= _moved(connection, work.guard, writes)
        progress.advance(len(writes.keys))
    late = False
    try:
        with connection.transaction():
            moved |= _delete_staged(connection, work, moved)
    except ForeignKeyViolation:
        # Rows of this very table may refer to what goes, and be about to change: then they do so first.
        late = True
    if not work.pile.counts["update"]:
        # Rows that only come need no more than the right to insert.
        _copy(connection, rows_in(work.target("insert")), work, ("insert",), moved)
    for acts in _kinds(work) if work.pile.counts["update"] else ():
        staged = stage(connection, work.target(acts[0]))
        sent = _copy(connection, rows_in(work.target(acts[0]), staged), work, acts, moved)
        try:
            arrived = sum(upsert(connection, work.target(acts[0]), staged)) if sent else 0
        except UniqueViolation as error:
            raise QueryError(
                f"{error.diag.message_primary} ({error.diag.message_detail})",
                sqlstate="23505",
                cure="rows that change places need to be deleted and copied: run without --fire-triggers, as a role"
                " that may set session_replication_role",
            ) from None
        if arrived != sent:
            raise TrueupError(f"{sent} rows were to be written and {arrived} were", cure=_KEPT_OUT)
    if late:
        moved |= _delete_staged(connection, work, moved)
    return moved


def _moved(connection: Connection, spec: TableSpec, writes: Writes) -> set[bytes]:
    """Keys of updates and inserts whose rows are not as they were read; the others are locked."""
    wrong: set[bytes] = set()
    for act, lock in (("update", sql.SQL(" FOR NO KEY UPDATE")), ("insert", sql.SQL(""))):
        mine = {
            mine: (key, guard)
            for mine, key, guard, each in zip(writes.ids, writes.keys, writes.guards, writes.acts, strict=True)
            if each == act
        }
        seen: dict[bytes, bytes] = {}
        for some in batches([key for key, _ in mine.values()]):
            query = sql.SQL("SELECT {}, {}::text FROM {} WHERE {}{}").format(
                key_texts(spec), row_hash(spec), sql.Identifier(spec.schema, spec.table), among(spec, some), lock
            )
            seen.update(_by_id(spec, connection.execute(query).fetchall()))
        wrong |= {key for key, (_, guard) in mine.items() if seen.get(key) != guard}
    return wrong


def _delete_staged(connection: Connection, work: NodeWork, moved: set[bytes]) -> set[bytes]:
    """Delete all rows that go in one statement: they may refer to one another."""
    spec = work.guard
    wanted = {
        key: guard
        for writes in work.pile
        for key, act, guard in zip(writes.ids, writes.acts, writes.guards, strict=True)
        if act == "delete"
    }
    wrong: set[bytes] = set()
    while wanted:
        keys = Target(spec, spec.key_names)
        names = sql.SQL(", ").join(map(sql.Identifier, spec.key_names))
        with connection.transaction() as savepoint:
            staged = stage(connection, keys)
            with connection.cursor() as cursor, cursor.copy(rows_in(keys, staged)) as sink:
                sink.write(b"".join(key + b"\n" for key in wanted))
            # Whoever is referred to by ON DELETE CASCADE takes others along, as the schema says.
            query = sql.SQL("DELETE FROM {} WHERE ({}) IN (SELECT {} FROM {}) RETURNING {}, {}::text").format(
                sql.Identifier(spec.schema, spec.table), names, names, staged, key_texts(spec), row_hash(spec)
            )
            seen = _by_id(spec, connection.execute(query).fetchall())
            now = {key for key, guard in wanted.items() if seen.get(key) != guard}
            if now & seen.keys():
                raise Rollback(savepoint)
        wrong |= now
        if not now & seen.keys():
            break
        wanted = {key: guard for key, guard in wanted.items() if key not in now}
    return wrong


def _note_unknown(connection: Connection, work: NodeWork, undo: UndoFile, moved: set[bytes]) -> None:
    """Rows whose hash was not known before they were written, or is another now: the undo file learns it."""
    for writes in work.pile:
        if (
            not moved
            and None not in writes.made
            and (not work.is_watched or _is_as_made(connection, work.guard, writes))
        ):
            continue
        undo.after(work.node.name, _now(connection, work.guard, writes, moved))


def _is_as_made(connection: Connection, spec: TableSpec, writes: Writes) -> bool:
    """Whether the node now has just the rows that were sent; asked by count and sum, as of a block."""
    query = sql.SQL("SELECT count(*), coalesce(sum({}), 0) FROM {} WHERE {}").format(
        row_hash(spec), sql.Identifier(spec.schema, spec.table), among(spec, writes.keys)
    )
    return tuple(one_row(connection.execute(query))) == _digest([made or None for made in writes.made])


def _now(
    connection: Connection, spec: TableSpec, writes: Writes, moved: set[bytes]
) -> Iterator[tuple[bytes, bytes | None]]:
    """The hashes of the rows as they are now, in this transaction; raises where a row is there that should not be."""
    query = sql.SQL("SELECT {}, {}::text FROM {} WHERE {}").format(
        key_texts(spec), row_hash(spec), sql.Identifier(spec.schema, spec.table), among(spec, writes.keys)
    )
    found = _by_id(spec, connection.execute(query).fetchall())
    for key, act in zip(writes.ids, writes.acts, strict=True):
        if key in moved:
            yield key, NOT_WRITTEN
            continue
        if (act == "delete") == (key in found):
            is_there = "is still there" if act == "delete" else "did not arrive"
            raise TrueupError(f"the row ({', '.join(key_of(key))}) {is_there}", cure=_KEPT_OUT)
        yield key, found.get(key)
