"""Disable the triggers and rules of the target that writes of a sync would fire, as its only writer."""

from __future__ import annotations

from collections.abc import Sequence

from trueup.db.connection import Connection
from trueup.verbs.sync import state, triggers
from trueup.verbs.sync.model import SyncTable
from trueup.verbs.sync.triggers import Trigger

# Seconds to retry for the lock of one table.
_TIMEOUT = 60.0


def silence(target: Connection, name: str, epoch: int, tables: Sequence[SyncTable], mode: str) -> list[Trigger]:
    """Disable what writes of the sync would fire, and return it; one transaction per table.

    The epoch is checked in the same transaction: a database that was opened for applications keeps its triggers.
    """
    found = triggers.firing(target, [table.name for table in tables], mode)
    for place in dict.fromkeys((trigger.schema, trigger.table) for trigger in found):
        of_table = [trigger for trigger in found if (trigger.schema, trigger.table) == place]

        def disable(chosen: Sequence[Trigger] = of_table) -> None:
            state.check_epoch(target, name, epoch)
            # An attempt that enabled them and made no decision yet must not open this database.
            state.refuse_opening(target, name)
            triggers.disable(target, name, chosen)

        triggers.with_short_locks(target, disable, _TIMEOUT)
    return found
