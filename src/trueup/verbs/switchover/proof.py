"""Are both sides equal? Digests of whole tables, cut by pages and read on several sessions, or of lists of keys.

Digests add up, whatever the order: so each side may be cut as its own files are, and nothing depends on collations.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from psycopg import sql

from trueup.db.connection import Connection
from trueup.db.node import connect, error_from_server
from trueup.rows.digest import EMPTY, Digest, digest_query
from trueup.rows.pages import on_pages, page_count
from trueup.rows.probe import choose_digest
from trueup.rows.spec import TableSpec
from trueup.rows.write.key_lists import KeyList, in_key_list
from trueup.task.together import both
from trueup.verbs.sync.model import SyncTable

if TYPE_CHECKING:
    from psycopg import sql

    from trueup.config.model import Node

    Connection = Connection

T = TypeVar("T")
R = TypeVar("R")

APPLICATION = "trueup switchover proof"
# Pages that one statement hashes: 128 MB, so that several sessions share a large table.
_PAGES = 16_384


@dataclass(frozen=True)
class Piece:
    """A part of a table on one side."""

    table: SyncTable
    query: sql.Composed


class Side:
    """One of the two databases, with some sessions to read it."""

    def __init__(self, node: Node, jobs: int, stack: ExitStack) -> None:
        self.node = node
        self.connections: list[Connection] = []
        for _ in range(jobs):
            connection = connect(node, application=APPLICATION)
            stack.callback(connection.close)
            self.connections.append(connection)

    def join(self, snapshot: str | None) -> None:
        """All sessions in one view: that of a snapshot, or each its own, of now."""
        for connection in self.connections:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            if snapshot is not None:
                connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")

    def leave(self) -> None:
        """End the views."""
        for connection in self.connections:
            with suppress(Exception):
                connection.execute("ROLLBACK")

    def timeout(self, milliseconds: int) -> None:
        """What every statement may take from here on; 0: no limit."""
        for connection in self.connections:
            connection.execute(f"SET statement_timeout = {milliseconds}")

    def spread(self, things: Sequence[T], work: Callable[[Connection, T], R]) -> list[R]:
        """Work on all things, each session on one at a time; the first error ends it."""
        waiting: SimpleQueue[T] = SimpleQueue()
        for thing in things:
            waiting.put(thing)
        found: list[R] = []
        errors: list[BaseException] = []

        def run(connection: Connection) -> None:
            while not errors:
                try:
                    thing = waiting.get_nowait()
                except Empty:
                    return
                try:
                    found.append(work(connection, thing))
                except BaseException as error:
                    errors.append(error)

        _in_threads([partial(run, connection) for connection in self.connections[: max(len(things), 1)]])
        if errors:
            raise error_from_server(errors[0], self.node)
        return found

    def cancel(self) -> None:
        """End what is under way."""
        for connection in self.connections:
            with suppress(Exception):
                connection.cancel_safe(timeout=5)


class Prover:
    """Both sides, ready to be compared; a context manager that ends the sessions."""

    def __init__(self, source: Node, target: Node, tables: Sequence[SyncTable], *, jobs: int) -> None:
        self._stack = ExitStack()
        try:
            self.source = Side(source, jobs, self._stack)
            self.target = Side(target, jobs, self._stack)
            firsts = [self.source.connections[0], self.target.connections[0]]
            seed = secrets.randbits(62)
            kind = choose_digest(firsts, TableSpec("", "", (), (), seed=seed), "auto")
        except BaseException:
            self._stack.close()
            raise
        # A copy keeps every digit: 1.0 is not 1.00 here.
        self.specs = {
            table.name: replace(table.spec, digest=kind, seed=seed, numeric="representation") for table in tables
        }
        self.tables = tuple(tables)

    def __enter__(self) -> Prover:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def unequal(self, tables: Sequence[SyncTable], *, milliseconds: int = 0) -> list[str]:
        """The tables whose digests differ, in words; sessions are in whatever view they are."""
        for side in (self.source, self.target):
            side.timeout(milliseconds)
        mine, theirs = both(
            lambda: self._digests(self.source, tables),
            lambda: self._digests(self.target, tables),
            cancel=self.cancel,
        )
        return _told(tables, mine, theirs)

    def cancel(self) -> None:
        """End what is under way on both sides."""
        self.source.cancel()
        self.target.cancel()

    def key_query(self, table: SyncTable) -> sql.Composed:
        """Count and sum of the rows of a list of keys; its literals are the parameters."""
        return _escaped_query(self.specs[table.name], table)

    def _digests(self, side: Side, tables: Sequence[SyncTable]) -> dict[str, Digest]:
        """The digest of every table, in pieces, the largest tables first."""
        pieces = [
            piece for table in sorted(tables, key=lambda each: -each.bytes) for piece in self._pieces(side, table)
        ]
        found = {str(table): EMPTY for table in tables}
        for table, digest in side.spread(pieces, _digest):
            found[table] += digest
        return found

    def _pieces(self, side: Side, table: SyncTable) -> Iterable[Piece]:
        spec = self.specs[table.name]
        pages = page_count(side.connections[0], spec)
        edges: list[int | None] = [*range(0, max(pages, 1), _PAGES), None]
        for first, end in pairwise(edges):
            yield Piece(table, digest_query(spec, sql.SQL("0"), on_pages(first or 0, end)))


def _digest(connection: Connection, piece: Piece) -> tuple[str, Digest]:
    row: Any = connection.execute(piece.query).fetchone()
    return str(piece.table), Digest(row[1], int(row[2]))


def keys_digest(connection: Connection, query: sql.Composed, keys: KeyList) -> Digest:
    """The digest of the rows of these keys; a key that is not there adds nothing."""
    row: Any = connection.execute(query, keys.literals).fetchone()
    return Digest(row[0], int(row[1]))


def keys_there(connection: Connection, table: SyncTable, keys: KeyList) -> int:
    """How many of these keys have a row."""
    query = sql.SQL("SELECT count(*) FROM {} t WHERE {}").format(sql.Identifier(*table.name), in_key_list(table.spec))
    row: Any = connection.execute(query, keys.literals).fetchone()
    return int(row[0])


def whole_digest(connection: Connection, spec: TableSpec) -> Digest:
    """The digest of a whole table, in one statement."""
    row: Any = connection.execute(digest_query(spec, sql.SQL("0"), [])).fetchone()
    return Digest(row[1], int(row[2]))


def _escaped_query(spec: TableSpec, table: SyncTable) -> sql.Composed:
    from trueup.rows.encode import row_hash

    # With parameters, a % in a name would be read as a placeholder.
    hashed = sql.SQL(row_hash(spec).as_string(None).replace("%", "%%"))
    return sql.SQL("SELECT count(*), coalesce(sum({}), 0)::text FROM {} t WHERE {}").format(
        hashed, sql.Identifier(*table.name), in_key_list(table.spec)
    )


def _told(tables: Sequence[SyncTable], mine: Mapping[str, Digest], theirs: Mapping[str, Digest]) -> list[str]:
    return [
        f"{name}: {mine[name].count:,} rows and {theirs[name].count:,} rows, of another content"
        if mine[name].count == theirs[name].count
        else f"{name}: {mine[name].count:,} rows against {theirs[name].count:,}"
        for name in map(str, tables)
        if mine[name] != theirs[name]
    ]


def _in_threads(work: Sequence[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=each, daemon=True) for each in work[1:]]
    for thread in threads:
        thread.start()
    work[0]()
    for thread in threads:
        thread.join()
