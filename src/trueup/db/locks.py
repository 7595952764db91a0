"""All advisory locks of trueup, with their numbers.

Locks with two numbers and locks with one number never conflict. The first of two numbers is always `FAMILY`, so
`pg_locks` with `classid = 1953658224` and `objsubid = 2` shows all of these locks and their holders.

| lock | holder |
|---|---|
| `(FAMILY, SYNC)` | on the source: a sync that copies or runs rounds; one at a time per database |
| one number, `hashtextextended('trueup tube …', 0)` | tubes and their installation: `tube_lock_key.sql` |
| one number, `hashtextextended('trueup validate …', 0)` | in the meta database: a running validation |
"""

from __future__ import annotations

from dataclasses import dataclass

from trueup.db.connection import Connection

# "trup" as four bytes.
FAMILY = 0x74727570
SYNC = 3


@dataclass(frozen=True)
class Holder:
    """A session that holds one of these locks, as far as the role can see it."""

    pid: int
    mode: str
    application: str
    role: str

    def __str__(self) -> str:
        return f"process {self.pid} ({', '.join(part for part in (self.role, self.application) if part)})"


def try_lock(connection: Connection, number: int) -> bool:
    """Take the lock exclusively for the session; return False if another session holds it."""
    row = connection.execute("SELECT pg_try_advisory_lock(%s, %s)", (FAMILY, number)).fetchone()
    return bool(row and row[0])


def unlock(connection: Connection, number: int) -> None:
    """Release the lock of the session; closing the session releases it too."""
    connection.execute("SELECT pg_advisory_unlock(%s, %s)", (FAMILY, number))


def holders(connection: Connection, number: int) -> list[Holder]:
    """Return the sessions that hold the lock in this database."""
    rows = connection.execute(
        "SELECT l.pid, l.mode, coalesce(a.application_name, ''), coalesce(a.usename, '')"
        " FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid"
        " WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.classid = %s AND l.objid = %s AND l.granted"
        " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) ORDER BY l.pid",
        (FAMILY, number),
    ).fetchall()
    return [Holder(*row) for row in rows]
