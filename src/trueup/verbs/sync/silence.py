"""Disable the triggers and rules of the target that writes of a sync would fire, as its only writer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from trueup.db.connection import Connection
from trueup.rows.write import disabled_triggers as triggers
from trueup.rows.write.disabled_triggers import Trigger
from trueup.verbs.sync import state
from trueup.verbs.sync.model import SyncTable

# Seconds to retry for the lock of one table.
_TIMEOUT = 60.0


def silence(target: Connection, name: str, epoch: int, tables: Sequence[SyncTable], mode: str) -> list[Trigger]:
    """Disable what writes of the sync would fire, and return it; one transaction per table.

    The epoch is checked in the same transaction: a database that was opened for applications keeps its triggers.
    What was disabled on a table that is not in the sync any more is enabled again.
    """
    names = [table.name for table in tables]
    present = triggers.all_triggers(target, names)
    known = {trigger.place for trigger in present}
    for stray in (trigger for trigger in triggers.recorded(target, name) if trigger.place not in known):
        _change(target, name, epoch, partial(_enable_stray, target, name, stray))
    found = [trigger for trigger in present if triggers.fires(trigger, mode)]
    for place in dict.fromkeys((trigger.schema, trigger.table) for trigger in found):
        chosen = [trigger for trigger in found if (trigger.schema, trigger.table) == place]
        _change(target, name, epoch, partial(_disable, target, name, chosen))
    return found


def _change(target: Connection, name: str, epoch: int, action: Callable[[], None]) -> None:
    def checked() -> None:
        state.check_epoch(target, name, epoch)
        action()

    triggers.with_short_locks(target, checked, _TIMEOUT)


def _disable(target: Connection, name: str, chosen: Sequence[Trigger]) -> None:
    # An attempt that enabled them and made no decision yet must not open this database.
    state.refuse_opening(target, name)
    triggers.disable(target, name, chosen)


def _enable_stray(target: Connection, name: str, stray: Trigger) -> None:
    triggers.enable_again(target, [stray])
    triggers.forget_one(target, name, stray)
