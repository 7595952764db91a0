"""Waits until committed transactions are visible.

Between its commit record in the log and the moment when other sessions see it, a transaction may wait for a synchronous
standby. A row that is read meanwhile is the old one, and an equal old row on the target would prove nothing.
"""

from __future__ import annotations

import time

from trueup.db.connection import Connection, one_value

_WAIT_SECONDS = 1.0
_PAUSE_SECONDS = 0.02


def invisible(connection: Connection, xids: set[int]) -> set[int]:
    """Return the transactions that new snapshots do not see yet."""
    if not xids:
        return set()
    _, top, running = str(one_value(connection.execute("SELECT pg_current_snapshot()::text"))).split(":")
    end = int(top) & 0xFFFFFFFF
    open_xids = {int(xid) & 0xFFFFFFFF for xid in running.split(",") if xid}
    # Transaction numbers wrap around: the half of the circle from `end` on is later than `end`.
    return {xid for xid in xids if xid in open_xids or (xid - end) & 0xFFFFFFFF < 0x80000000}


def wait_until_visible(connection: Connection, xids: set[int]) -> set[int]:
    """Wait a moment; return the transactions that are still not visible."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while (hidden := invisible(connection, xids)) and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)
    return hidden
