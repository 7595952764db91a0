"""Lock tables, against a rewrite or for a change, and give way to the applications that use them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import psycopg
from psycopg import sql

from trueup.config.model import Node
from trueup.db.connection import Connection, one_row
from trueup.db.foreign_keys import TableName
from trueup.db.lock_holders import named_lock_holders
from trueup.db.names import display_name
from trueup.db.node import LOCK_TIMEOUT

# A session in the queue of a lock makes others wait behind it: leave the queue after this time, and join it again.
ATTEMPT_MS = 300
_PAUSE = 0.05
# Seconds in which one attempt must succeed.
SECONDS = 60.0


def lock_shared(connection: Connection, node: Node, tables: Sequence[TableName], *, seconds: float = SECONDS) -> None:
    """Lock tables and their partitions in ACCESS SHARE mode until the open transaction ends.

    This takes no snapshot. Raise UndefinedTable if a table does not exist, and QueryError with the name of the
    session that holds the lock after `seconds`.
    """
    names = sql.SQL(", ").join(sql.Identifier(*table) for table in tables)
    lock = sql.SQL("SAVEPOINT locks; SET LOCAL lock_timeout = {}; LOCK TABLE {} IN ACCESS SHARE MODE").format(
        ATTEMPT_MS, names
    )
    shown = ", ".join(display_name(*table) for table in tables)
    until = time.monotonic() + seconds
    with named_lock_holders(node, connection, lambda: shown, seconds=seconds, effect="nothing was lost"):
        while True:
            try:
                connection.execute(lock)
                connection.execute(f"RELEASE SAVEPOINT locks; SET LOCAL lock_timeout = '{LOCK_TIMEOUT:.0f}s'")
                return
            except psycopg.errors.LockNotAvailable:
                if time.monotonic() > until:
                    raise
                connection.execute("ROLLBACK TO SAVEPOINT locks")
                time.sleep(_PAUSE)


def in_short_attempts(connection: Connection, change: Callable[[], object]) -> None:
    """Run statements that request a lock which excludes writers, in attempts that are short, as one transaction.

    All in all they take as long as the session waits for a lock (`lock_timeout`; 0: no limit); then raise
    LockNotAvailable. Nothing of an attempt stays if it fails.
    """
    before, seconds = one_row(
        connection.execute(
            "SELECT s, extract(epoch FROM s::interval)::float8 FROM current_setting('lock_timeout') x(s)"
        )
    )
    until = time.monotonic() + seconds if seconds else math.inf
    while True:
        try:
            with connection.transaction():
                connection.execute("SELECT set_config('lock_timeout', %s, true)", [f"{ATTEMPT_MS}ms"])
                change()
                # In a savepoint, it would stay as it is until the end of the transaction.
                connection.execute("SELECT set_config('lock_timeout', %s, true)", [before])
            return
        except psycopg.errors.LockNotAvailable:
            if time.monotonic() > until:
                raise
            time.sleep(_PAUSE)
