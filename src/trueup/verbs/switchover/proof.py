"""Compares both databases: digests of whole tables, cut by pages and read on several sessions, or of lists of keys.

The digest of a table is the sum of the digests of its parts in any order: so each side is cut by its own pages, and
collations do not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from queue import Empty, SimpleQueue
from typing import TypeVar

import psycopg
from psycopg import sql

from trueup.config.model import Node
from trueup.config.wording import counted
from trueup.db.connection import Connection
from trueup.db.node import connect, error_from_server
from trueup.rows.digest import EMPTY, Digest, digest_of, digest_query
from trueup.rows.encode import row_hash
from trueup.rows.pages import on_pages, page_count
from trueup.rows.probe import choose_digest
from trueup.rows.spec import TableSpec, new_seed
from trueup.rows.write.key_lists import KeyList, in_key_list
from trueup.task.together import both, together
from trueup.verbs.sync.model import SyncTable

T = TypeVar("T")
R = TypeVar("R")

APPLICATION = "trueup switchover proof"
# Pages per statement: 128 MB, so that several sessions share a large table.
_PAGES = 16_384
# Seconds to wait for a server that is asked to cancel a statement.
_CANCEL_SECONDS = 2


@dataclass(frozen=True)
class Piece:
    """A part of a table in one database."""

    table: SyncTable
    query: sql.Composed


class Side:
    """One of the two databases, with several sessions to read it."""

    def __init__(self, node: Node, jobs: int, stack: ExitStack) -> None:
        self.node = node
        self.connections: list[Connection] = []
        for _ in range(jobs):
            connection = connect(node, application=APPLICATION)
            stack.callback(connection.close)
            self.connections.append(connection)

    def join(self, snapshot: str | None) -> None:
        """Begin a transaction on all sessions: in this snapshot, or each in its own current one."""
        for connection in self.connections:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            if snapshot is not None:
                connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")

    def leave(self) -> None:
        """End the transactions."""
        for connection in self.connections:
            with suppress(Exception):
                connection.execute("ROLLBACK")

    def timeout(self, milliseconds: int) -> None:
        """Set the statement time-out of all sessions; 0: no limit."""
        for connection in self.connections:
            connection.execute(f"SET statement_timeout = {milliseconds}")

    def spread(self, items: Sequence[T], work: Callable[[Connection, T], R]) -> list[R]:
        """Call `work` for all items on all sessions, and return the results in any order; raise the first error."""
        waiting: SimpleQueue[T] = SimpleQueue()
        for item in items:
            waiting.put(item)
        results: list[R] = []
        errors: list[BaseException] = []

        def run(connection: Connection) -> None:
            while not errors:
                try:
                    item = waiting.get_nowait()
                except Empty:
                    return
                try:
                    results.append(work(connection, item))
                except BaseException as error:
                    errors.append(error)

        together(self.connections[: max(len(items), 1)], run)
        if errors:
            raise error_from_server(errors[0], self.node)
        return results

    def cancel(self) -> None:
        """Cancel the running statements."""

        def cancel(connection: Connection) -> None:
            with suppress(Exception):
                connection.cancel_safe(timeout=_CANCEL_SECONDS)

        together(self.connections, cancel)


class Prover:
    """Both databases with sessions to compare them; a context manager that closes the sessions."""

    def __init__(self, source: Node, target: Node, tables: Sequence[SyncTable], *, jobs: int) -> None:
        self._stack = ExitStack()
        try:
            self.source = Side(source, jobs, self._stack)
            self.target = Side(target, jobs, self._stack)
            firsts = [self.source.connections[0], self.target.connections[0]]
            kind = choose_digest(firsts, "auto")
        except BaseException:
            self._stack.close()
            raise
        # A copy keeps every digit: 1.0 differs from 1.00 here.
        self._specs = {table.name: replace(table.spec, digest=kind, numeric="representation") for table in tables}
        self.tables = tuple(tables)

    def __enter__(self) -> Prover:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def unequal(self, tables: Sequence[SyncTable], *, milliseconds: int = 0) -> dict[str, str]:
        """Return a text per table whose digests differ, in the current transactions of the sessions."""
        seed = new_seed()
        for side in (self.source, self.target):
            side.timeout(milliseconds)
        on_source, on_target = both(
            lambda: self._digests(self.source, tables, seed),
            lambda: self._digests(self.target, tables, seed),
            cancel=self.cancel,
        )
        names = (self.source.node.name, self.target.node.name)
        return {
            str(table): difference(table, names, on_source[str(table)], on_target[str(table)])
            for table in tables
            if on_source[str(table)] != on_target[str(table)]
        }

    def cancel(self) -> None:
        """Cancel the running statements of both sides."""
        self.source.cancel()
        self.target.cancel()

    def spec(self, table: SyncTable, seed: int) -> TableSpec:
        """Return how a table is hashed; the seed is drawn for each comparison, when the rows are in its snapshots."""
        return replace(self._specs[table.name], seed=seed)

    def keys_digest(self, connection: Connection, table: SyncTable, keys: KeyList, seed: int) -> Digest:
        """Return the digest of the rows of these keys; a key without a row adds nothing."""
        query = sql.SQL("SELECT 0, count(*), coalesce(sum({}), 0)::text FROM {} t WHERE {}").format(
            row_hash(self.spec(table, seed)), sql.Identifier(*table.name), in_key_list(table.spec, keys)
        )
        return digest_of(connection, query)

    def whole_digest(self, connection: Connection, table: SyncTable, seed: int) -> Digest:
        """Return the digest of a whole table, computed by one statement."""
        return digest_of(connection, digest_query(self.spec(table, seed), sql.SQL("0"), []))

    def _digests(self, side: Side, tables: Sequence[SyncTable], seed: int) -> dict[str, Digest]:
        """Return the digest of every table, computed in pieces, the largest tables first."""
        largest_first = sorted(tables, key=lambda table: -table.bytes)
        pieces = [piece for table in largest_first for piece in self._pieces(side, table, seed)]
        digests = {str(table): EMPTY for table in tables}
        for name, digest in side.spread(pieces, _digest):
            digests[name] += digest
        return digests

    def _pieces(self, side: Side, table: SyncTable, seed: int) -> Iterable[Piece]:
        spec = self.spec(table, seed)
        pages = page_count(side.connections[0], spec)
        edges: list[int | None] = [*range(0, max(pages, 1), _PAGES), None]
        for first, end in pairwise(edges):
            yield Piece(table, digest_query(spec, sql.SQL("0"), on_pages(first or 0, end)))


def difference(table: SyncTable, nodes: tuple[str, str], on_source: Digest, on_target: Digest) -> str:
    """Return how a table differs."""
    rows, others = counted(on_source.count, "row"), counted(on_target.count, "row")
    if on_source.count == on_target.count:
        return f"{table}: {rows} in both databases, with different contents{cure_without_key(table, nodes)}"
    return f"{table}: {rows} on {nodes[0]}, {others} on {nodes[1]}{cure_without_key(table, nodes)}"


def cure_without_key(table: SyncTable, nodes: tuple[str, str]) -> str:
    """Return how to make a table without a key equal, which a repair cannot write; "" for a table with a key."""
    if table.spec.key:
        return ""
    return f" (it has no key: copy it again with trueup sync add {table} --from {nodes[0]} --to {nodes[1]})"


def _digest(connection: Connection, piece: Piece) -> tuple[str, Digest]:
    if connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
        return str(piece.table), digest_of(connection, piece.query)
    # The end of the savepoint releases the lock on the table, while the snapshot stays.
    connection.execute("SAVEPOINT piece")
    digest = digest_of(connection, piece.query)
    connection.execute("ROLLBACK TO SAVEPOINT piece; RELEASE SAVEPOINT piece")
    return str(piece.table), digest
