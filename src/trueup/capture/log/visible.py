"""Waits until committed transactions are visible.

Between its commit record in the log and the moment when other sessions see it, a transaction may wait for a synchronous
standby. A row that is read meanwhile is the old one, and an equal old row on the target would prove nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from trueup.db.connection import Connection, one_value

_WAIT_SECONDS = 1.0
_PAUSE_SECONDS = 0.02


@dataclass(frozen=True)
class Snapshot:
    """The transactions that are visible at a moment: all before `end` that are not `running`."""

    end: int
    running: frozenset[int]

    def sees(self, xid: int) -> bool:
        """Return whether a committed transaction is visible."""
        # Transaction numbers wrap around: the half of the circle from `end` on is later than `end`.
        return xid not in self.running and (xid - self.end) & 0xFFFFFFFF >= 0x80000000


def read_snapshot(connection: Connection) -> Snapshot:
    """Return what new snapshots see at least, from now on."""
    _, top, running = str(one_value(connection.execute("SELECT pg_current_snapshot()::text"))).split(":")
    open_xids = frozenset(int(xid) & 0xFFFFFFFF for xid in running.split(",") if xid)
    return Snapshot(int(top) & 0xFFFFFFFF, open_xids)


def invisible(connection: Connection, xids: set[int]) -> set[int]:
    """Return the transactions that new snapshots do not see yet."""
    if not xids:
        return set()
    snapshot = read_snapshot(connection)
    return {xid for xid in xids if not snapshot.sees(xid)}


def wait_until_visible(connection: Connection, xids: set[int]) -> set[int]:
    """Wait a moment; return the transactions that are still not visible."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while (hidden := invisible(connection, xids)) and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)
    return hidden
