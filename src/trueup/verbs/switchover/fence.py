"""The fence: an exclusive lock that excludes all writers, who hold the same lock in shared mode.

The lock belongs to one transaction on the old database, which also makes the decision. The end of that transaction
releases it, and the server releases it if this process dies. A writer that waits for it continues after the decision
and sees it.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime

import psycopg

from trueup.config.model import Node
from trueup.config.wording import counted
from trueup.db.connection import Connection, one_row
from trueup.db.lock_holders import Holder
from trueup.db.node import connect, error_from_server
from trueup.db.statements import load
from trueup.verbs.switchover import pointer
from trueup.verbs.switchover.phases import FENCE, SERVER_LIMITS, Budget, spent

APPLICATION_NAME = "trueup switchover"


def open_session(node: Node) -> Connection:
    """Open a session that may write, whose commits wait for the disk, and whose statements are prepared at once."""
    connection = connect(node, application=APPLICATION_NAME, read_only=False)
    connection.execute("SET statement_timeout = 0")
    # Statements of the pause run before it as well, so they are planned already.
    connection.prepare_threshold = 1
    return connection


class Fence:
    """The session on the old database that excludes the writers and makes the decision."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.connection = open_session(node)
        # The process of the session on the server, and its start: a later process may have the same number.
        self.session: tuple[int, datetime] = one_row(self.connection.execute(pointer.statement("session")))
        self.is_held = False
        self._claimed = ""

    def claim(self, sync: str) -> None:
        """Become the only session that executes the switchover of a sync; if another one does, the error names it."""
        pointer.claim(self.connection, sync, self.node.name)
        self._claimed = sync

    def acquire(self, budget: Budget) -> None:
        """Wait until all writers have ended their transactions; new writers wait. Raise when the budget is spent."""
        budget.start()
        left = budget.milliseconds(FENCE)
        # If this machine fails, the server ends the pause itself. One message, so one round trip.
        statement = (
            f"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {left};"
            f" SET LOCAL idle_in_transaction_session_timeout = {left};"
            " LOCK TABLE trueup.switchover_lock IN EXCLUSIVE MODE"
        )
        try:
            self.connection.execute(statement)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            # Release the waiting writers first; the blockers still hold their locks and can be named.
            self.release()
            names = "; ".join(map(str, self.blockers())) or "a session that has ended meanwhile"
            raise spent(budget.seconds, FENCE, f"the shared lock is held by {names}") from None
        except psycopg.Error as error:
            raise error_from_server(error, self.node) from None
        self.is_held = True

    def show_phase(self, phase: str, budget: Budget) -> None:
        """Show the phase as `application_name`, and limit how long the server holds the fence without a statement."""
        if not self.is_held:
            return
        left = budget.milliseconds(phase)
        try:
            self.connection.execute(
                f"SET LOCAL application_name = '{APPLICATION_NAME}: {phase}';"
                f" SET LOCAL idle_in_transaction_session_timeout = {left}"
            )
        except psycopg.Error as error:
            self.is_held = False
            # The server ended the session when its time was up.
            if error.sqlstate in (*SERVER_LIMITS, "57014") or budget.left <= 0:
                raise spent(budget.seconds, phase) from None
            raise error_from_server(error, self.node) from None

    def blockers(self) -> list[Holder]:
        """Return the holders of the lock that writers share."""
        rows = self.connection.execute(load("trueup.verbs.switchover", "fence.sql")["blockers"]).fetchall()
        return [Holder(*row) for row in rows]

    def waiting(self) -> tuple[str, ...]:
        """Return the sessions that wait for the lock: how many of each role and application, and how long."""
        rows = self.connection.execute(load("trueup.verbs.switchover", "fence.sql")["waiting"]).fetchall()
        return tuple(
            f"{counted(count, 'session')} of {role}{f' ({application})' if application else ''}, up to {ms:,.0f} ms"
            for role, application, count, ms in rows
        )

    def release(self) -> None:
        """Let the writers continue, without a decision."""
        self.is_held = False
        with suppress(Exception):
            if self.connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                self.connection.execute("ROLLBACK")

    def close(self) -> None:
        """End the session and release all its locks."""
        self.release()
        with suppress(Exception):
            pointer.unclaim(self.connection, self._claimed)
        with suppress(Exception):
            self.connection.close()
