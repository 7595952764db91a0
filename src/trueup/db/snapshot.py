"""A consistent view of a node: a snapshot that the driver exports and holds, and every task joins."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from psycopg import errors, sql

from trueup.config.model import Node
from trueup.db.lock_holders import limit_lock_waits, named_lock_holders
from trueup.db.names import display_name
from trueup.db.node import LOCK_TIMEOUT, connect, error_from_server
from trueup.db.server_identity import ServerPosition, TableFacts, lsn_number, server_position, table_facts

# The cure when an exported snapshot can no longer be joined.
SNAPSHOT_CURE = "keep the session that exported the snapshot open until the last row is read, or take a new snapshot"


@dataclass(frozen=True)
class Position:
    """The state that a snapshot shows: WAL position, finished transactions, and time."""

    node: str
    server_version: str
    log_position: str
    transactions: str
    taken_at: str
    in_recovery: bool
    snapshot: str
    # Which server it is; "" if it is hidden.
    system: str = ""
    timeline: int = 0
    # The OID of the table that was locked; 0: none.
    table_oid: int = 0
    # What says whether it is still that table, see `table_facts`.
    files: str = ""
    columns: str = ""

    @property
    def server(self) -> ServerPosition:
        """The server and its position; a standby has none."""
        position = None if self.in_recovery or not self.log_position else lsn_number(self.log_position)
        return ServerPosition(self.system, self.timeline, position)

    @property
    def facts(self) -> TableFacts:
        """What says whether the table is still the same one."""
        return TableFacts(self.table_oid, self.files, self.columns)


class Control:
    """The session of the driver with one node; the exported snapshot is valid while it is open."""

    def __init__(self, node: Node, *, application: str) -> None:
        self.node = node
        self.connection = connect(node, application=application)
        self.snapshot_id: str | None = None

    def begin(
        self,
        schema: str = "",
        table: str = "",
        *,
        export: bool,
        also: Sequence[tuple[str, str]] = (),
        lock_timeout: float = LOCK_TIMEOUT,
    ) -> Position:
        """Start the read-only transaction for planning; with `export`, tasks can join its snapshot.

        If a table is named, and for the tables `also` (schema and name), take an ACCESS SHARE lock first, because after
        a TRUNCATE the snapshot would show no rows.
        """
        try:
            # The session is idle while the tasks run.
            self.connection.execute("SET idle_in_transaction_session_timeout = 0; SET statement_timeout = 0")
            self.connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            for name in [*([(schema, table)] if table else []), *also]:
                self._lock(*name, lock_timeout)
            exported = "pg_export_snapshot()" if export else "''"
            row = self.connection.execute(
                f"""SELECT {exported}, current_setting('server_version'), pg_is_in_recovery(),
                    CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END::text,
                    pg_current_snapshot()::text,
                    to_char(clock_timestamp(), 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""
            ).fetchone()
            facts = table_facts(self.connection, schema, table)
            server = server_position(self.connection)
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
            server.system,
            server.timeline,
            facts.table,
            facts.files,
            facts.columns,
        )

    def _lock(self, schema: str, table: str, timeout: float) -> None:
        lock = sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(sql.Identifier(schema, table))
        self.connection.execute(limit_lock_waits(timeout))
        # With privileges on some columns only, or for a materialized view, the first query takes the lock. A
        # savepoint and LOCK TABLE do not take the snapshot.
        denied = suppress(errors.InsufficientPrivilege, errors.WrongObjectType)
        holders = named_lock_holders(
            self.node,
            self.connection,
            lambda: display_name(schema, table),
            seconds=timeout,
            effect="no row was read",
        )
        with holders, denied, self.connection.transaction():
            self.connection.execute(lock)

    def end(self) -> None:
        """End the transaction, so that the session holds no snapshot while the tasks run."""
        self.connection.execute("ROLLBACK")

    def cancel(self) -> None:
        """Cancel the running query, from another thread."""
        with suppress(Exception):
            self.connection.cancel_safe(timeout=5)

    def is_alive(self) -> bool:
        """Return whether the session is open, so that the snapshot is still valid."""
        if self.connection.lock.locked():
            # Another thread runs a statement, and gets an error if the session ends.
            return True
        try:
            self.connection.execute("SELECT 1")
        except Exception:
            return False
        return True

    def close(self) -> None:
        """Close the session. Never raises."""
        with suppress(Exception):
            self.connection.close()
