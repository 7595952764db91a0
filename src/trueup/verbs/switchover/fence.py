"""The fence: nobody writes. An exclusive lock that every writer shares, taken by itself or by the guards of the tables.

The lock belongs to one transaction on the old database, which also makes the decision: it is released by its end,
whichever that is, and by the server if this process dies. Who waits for it goes on behind the decision and sees it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from trueup.db.connection import Connection
from trueup.db.locks import APPLICATION, FAMILY, SWITCHOVER, holders, try_lock
from trueup.db.node import connect, error_from_server
from trueup.db.statements import load
from trueup.errors import CheckFailed
from trueup.verbs.switchover.phases import FENCE, Budget, spent

if TYPE_CHECKING:
    import psycopg

    from trueup.config.model import Node

APPLICATION_NAME = "trueup switchover"


@dataclass(frozen=True)
class Blocker:
    """Somebody who has written and not ended its transaction: a session, or a prepared transaction."""

    pid: int | None
    role: str
    application: str
    seconds: float | None
    what: str

    def __str__(self) -> str:
        if self.pid is None:
            return f"a prepared transaction ({self.what})"
        who = ", ".join(part for part in (self.role, self.application) if part)
        since = "" if self.seconds is None else f", in a transaction for {self.seconds:.1f} s"
        return f"process {self.pid} ({who}{since}{f': {self.what}' if self.what else ''})"


class Fence:
    """The session on the old database that stops the writers and decides."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.connection: Connection = connect(node, application=APPLICATION_NAME, read_only=False)
        # A decision that a crash of the server could take back would be none.
        self.connection.execute("SET synchronous_commit = on; SET statement_timeout = 0")
        # What is asked inside of the pause was asked before it, and is planned already.
        self.connection.prepare_threshold = 1
        self.is_up = False

    def be_the_only_one(self) -> None:
        """One switchover at a time; an error names who is at it."""
        if try_lock(self.connection, SWITCHOVER):
            return
        others = ", ".join(str(holder) for holder in holders(self.connection, SWITCHOVER)) or "it just ended"
        raise CheckFailed(
            [f"another switchover is under way in this database: {others}"],
            cure="wait for it, or end it with: trueup switchover abort",
            node=self.node.name,
        )

    def raise_it(self, budget: Budget) -> None:
        """Wait until all writers have ended their transactions; new ones wait behind us, for the budget at most."""
        budget.start()
        left = budget.milliseconds(FENCE)
        # Should this machine vanish, the server ends the pause by itself. All in one message: one way there and back.
        statement = (
            f"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {left};"
            f" SET LOCAL idle_in_transaction_session_timeout = {left};"
            f" SELECT pg_advisory_xact_lock({FAMILY}, {APPLICATION})"
        )
        try:
            self.connection.execute(statement)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            # Writers go on from here; who stood in the way is still there to be named.
            self.lower()
            names = "; ".join(map(str, self.blockers())) or "it has ended meanwhile"
            raise spent(budget.seconds, FENCE, f"these hold the lock: {names}") from None
        except psycopg.Error as error:
            raise error_from_server(error, self.node) from None
        self.is_up = True

    def say(self, phase: str, budget: Budget) -> None:
        """Show the phase to whoever looks at the server's sessions, and how long the server still holds the fence."""
        if not self.is_up:
            return
        left = budget.milliseconds(phase)
        with self.errors(phase, budget):
            self.connection.execute(
                f"SET LOCAL application_name = '{APPLICATION_NAME}: {phase}';"
                f" SET LOCAL idle_in_transaction_session_timeout = {left}"
            )

    @contextmanager
    def errors(self, phase: str, budget: Budget) -> Iterator[None]:
        """A session that the server ended because its time was up is a spent budget; all else is told as it is."""
        try:
            yield
        except psycopg.Error as error:
            self.is_up = False
            if error.sqlstate in ("25P03", "25P04", "57014") or budget.left <= 0:
                raise spent(budget.seconds, phase) from None
            raise error_from_server(error, self.node) from None

    def blockers(self) -> list[Blocker]:
        """Who holds the lock that writers share."""
        rows = self.connection.execute(
            load("trueup.verbs.switchover", "fence.sql")["blockers"], {"family": FAMILY, "number": APPLICATION}
        ).fetchall()
        return [Blocker(*row) for row in rows]

    def lower(self) -> None:
        """Let the writers go on; nothing was decided."""
        self.is_up = False
        with suppress(Exception):
            self.connection.execute("ROLLBACK")

    def close(self) -> None:
        """End the session, and all it holds."""
        self.is_up = False
        with suppress(Exception):
            self.connection.close()
