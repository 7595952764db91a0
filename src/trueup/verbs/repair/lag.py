"""Wait until subscriptions have applied what their publishers committed before.

A repair may insert a row that a subscription still has to deliver: it would stop with a duplicate key. Once it has
caught up, the row exists, and the repair leaves it, because it is not as it was read.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from trueup.db.connection import Connection, one_value
from trueup.db.statements import load

# A subscription that works has confirmed a position within a moment.
PATIENCE = 10.0
_INTERVAL = 0.05


def deadline() -> float:
    """Return the time, by the monotonic clock, at which waiting for the subscriptions of all tables ends."""
    return time.monotonic() + PATIENCE


def slots_behind(
    publishers: Mapping[str, Connection], slots: Sequence[tuple[str, str]], until: float
) -> set[tuple[str, str]]:
    """Wait until the readers of slots, each given by node and name, have confirmed all changes that are committed now.

    Returns the slots whose readers have not when the monotonic clock shows `until`.
    """
    statements = load("trueup.verbs.repair", "replication.sql")
    nodes = {node for node, _ in slots}
    positions = {node: one_value(publishers[node].execute(statements["position"])) for node in nodes}
    waiting = set(slots)
    while True:
        for node, slot in sorted(waiting):
            values = {"slot": slot, "position": positions[node]}
            if publishers[node].execute(statements["has_passed"], values).fetchone() == (True,):
                waiting.discard((node, slot))
        if not waiting or time.monotonic() > until:
            return waiting
        time.sleep(_INTERVAL)
