"""Whether source and target still have the same history: neither went back by a failover or a restore.

See `capture.triggers.readers` for the tokens that show it for certain. A failover to a standby that has all rows of the
last round is not a problem, and rounds continue.
"""

from __future__ import annotations

from trueup.capture.triggers.readers import Reader
from trueup.db.connection import Connection, one_value
from trueup.errors import CheckFailed
from trueup.verbs.sync.model import LOG_SCHEMA
from trueup.verbs.sync.state import State

_ACCEPT = (
    "compare and repair all tables (trueup diff, then trueup repair with --source-of-truth {}), then run trueup sync"
    " accept; or copy all rows again: trueup sync drop, trueup sync start"
)
_COPY = "copy all rows again: trueup sync drop, trueup sync start"


def reader(name: str) -> Reader:
    """Return the reader of the change log of a sync."""
    return Reader(LOG_SCHEMA, name, "sync")


def has_log(source: Connection) -> bool:
    """Return whether the source has the change logs of its syncs."""
    return bool(one_value(source.execute("SELECT to_regclass(%s) IS NOT NULL", [f"{LOG_SCHEMA}.readers"])))


def problem(source: Connection, stored: State, names: tuple[str, str]) -> str:
    """Return which database went back and what that means; "" if none did."""
    if not has_log(source):
        # Without a token nothing was copied yet.
        gone = "{} has no change log (a restore from before the sync, or it was dropped): changes were not recorded"
        return gone.format(names[0]) if stored.token else ""
    texts = {
        "here": "{0} went back (a failover to a standby that was behind, or a restore): {1} has rows that {0} lost",
        "there": "{1} went back (a failover to a standby that was behind, or a restore): it lost rows that were copied"
        " to it, and the change log of {0} does not have them any more",
        "either": "{0} or {1} went back (a failover to a standby that was behind, or a restore): {1} may have rows that"
        " {0} lost, or lack rows that were copied to it",
    }
    side = reader(stored.sync).went_back(source, stored.mark)
    return texts[side].format(*names) if side else ""


def refuse(source: Connection, stored: State, names: tuple[str, str]) -> None:
    """Raise CheckFailed if one of the databases went back since the last round."""
    if found := problem(source, stored, names):
        raise CheckFailed([found], cure=_ACCEPT.format(names[0]) if can_accept(source, stored) else _COPY)


def can_accept(source: Connection, stored: State) -> bool:
    """Return whether a sync can continue after a diff and a repair: the copy is finished, and changes are recorded."""
    return stored.phase == "running" and has_log(source)
