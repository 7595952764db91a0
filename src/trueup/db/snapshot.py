"""One consistent view of a node: exported and held by the driver, joined by every task."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psycopg import errors, sql

from trueup.db.names import display_name
from trueup.db.node import connect, error_from_server

if TYPE_CHECKING:
    from trueup.config.model import Node

# What to do when an exported snapshot cannot be joined any more.
GONE = "a snapshot lives as long as the session that exported it: hold it until the last row is read, or take a new one"


@dataclass(frozen=True)
class Position:
    """What a snapshot saw: where the log stood, which transactions were finished, and when."""

    node: str
    server_version: str
    log_position: str
    transactions: str
    taken_at: str
    in_recovery: bool
    snapshot: str


class Control:
    """The driver's session with one node; while it is open, the exported snapshot lives."""

    def __init__(self, node: Node, *, application: str) -> None:
        self.node = node
        self.connection = connect(node, application=application)
        self.snapshot_id: str | None = None

    def begin(self, schema: str = "", table: str = "", *, export: bool) -> Position:
        """Start the read-only transaction all planning happens in; with `export`, tasks can join it.

        A named table is locked first, as any reader does: a TRUNCATE after the snapshot would show it empty.
        """
        try:
            # The server must not end a session that only waits for the tasks.
            self.connection.execute("SET idle_in_transaction_session_timeout = 0; SET statement_timeout = 0")
            begin = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"
            self.connection.execute(begin)
            try:
                if table:
                    lock = sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(sql.Identifier(schema, table))
                    self.connection.execute(lock)
            except (errors.InsufficientPrivilege, errors.WrongObjectType):
                # With rights on some columns only, or on a materialized view, the first query takes the lock.
                self.connection.execute("ROLLBACK")
                self.connection.execute(begin)
            exported = "pg_export_snapshot()" if export else "''"
            row = self.connection.execute(
                f"""SELECT {exported}, current_setting('server_version'), pg_is_in_recovery(),
                    CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END::text,
                    pg_current_snapshot()::text,
                    to_char(clock_timestamp(), 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""
            ).fetchone()
        except Exception as error:
            raise error_from_server(error, self.node, table=display_name(schema, table) if table else None) from None
        assert row is not None
        snapshot, version, recovery, lsn, transactions, now = row
        self.snapshot_id = str(snapshot) or None
        return Position(
            self.node.name,
            str(version),
            str(lsn or ""),
            str(transactions),
            str(now),
            bool(recovery),
            str(snapshot),
        )

    def end(self) -> None:
        """End the transaction, so that nothing is held while the tasks run; the session stays."""
        self.connection.execute("ROLLBACK")

    def cancel(self) -> None:
        """End the query that is under way, from another thread."""
        with suppress(Exception):
            self.connection.cancel_safe(timeout=5)

    def is_alive(self) -> bool:
        """Whether the node still answers on this session, and so still holds the snapshot."""
        try:
            self.connection.execute("SELECT 1")
        except Exception:
            return False
        return True

    def close(self) -> None:
        """End the transaction and the session; never raises, for it is called on the way out."""
        try:
            self.connection.close()
        except Exception:
            return
