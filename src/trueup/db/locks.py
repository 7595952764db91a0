"""All advisory locks that trueup takes, by number: nobody else has to look elsewhere whether a number is free.

Locks of two numbers and locks of one number never meet. The first of the two is always `FAMILY`, so one look into
`pg_locks` (`classid = 1953658224`, `objsubid = 2`) shows all of these, and who holds them.

| lock | who holds it |
|---|---|
| `(FAMILY, APPLICATION)` | shared: an application, for each transaction; exclusive: a switchover, for the pause |
| `(FAMILY, SWITCHOVER)` | whoever executes, rolls back or finishes a switchover; one at a time in a database |
| `(FAMILY, SYNC)` | on the source: whoever copies or carries rounds over; one at a time in a database |
| one number, `hashtextextended('trueup tube …', 0)` | tubes: `tube_lock_key.sql`, and the installation |
| one number, `hashtextextended('trueup validate …', 0)` | in the meta database: who runs that validation |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trueup.db.connection import Connection

if TYPE_CHECKING:
    from typing_extensions import LiteralString

# "trup" as four bytes.
FAMILY = 0x74727570
APPLICATION = 1
SWITCHOVER = 2
SYNC = 3
# The text whose hash is the lock of a tube begins like this; the number is worked out by the server.
TUBES = "trueup tube "

# For documentation and other languages: what an application runs first in each transaction.
APPLICATION_SQL: LiteralString = "SELECT pg_advisory_xact_lock_shared(1953658224, 1)"


@dataclass(frozen=True)
class Holder:
    """A session that holds one of our locks, as far as the role may know it."""

    pid: int
    mode: str
    application: str
    role: str

    def __str__(self) -> str:
        return f"process {self.pid} ({', '.join(part for part in (self.role, self.application) if part)})"


def try_lock(connection: Connection, number: int) -> bool:
    """Take the lock for the session, exclusively, if it is free now."""
    row = connection.execute("SELECT pg_try_advisory_lock(%s, %s)", (FAMILY, number)).fetchone()
    return bool(row and row[0])


def unlock(connection: Connection, number: int) -> None:
    """Give the session's lock back; ending the session does the same."""
    connection.execute("SELECT pg_advisory_unlock(%s, %s)", (FAMILY, number))


def holders(connection: Connection, number: int) -> list[Holder]:
    """Who holds the lock in this database."""
    rows = connection.execute(
        "SELECT l.pid, l.mode, coalesce(a.application_name, ''), coalesce(a.usename, '')"
        " FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid"
        " WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.classid = %s AND l.objid = %s AND l.granted"
        " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) ORDER BY l.pid",
        (FAMILY, number),
    ).fetchall()
    return [Holder(*row) for row in rows]
