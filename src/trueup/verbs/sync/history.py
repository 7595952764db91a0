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


def problem(source: Connection, stored: State, names: tuple[str, str]) -> str:
    """Return which database went back and what that means; "" if none did, or if there is no change log."""
    if one_value(source.execute("SELECT to_regclass(%s) IS NULL", [f"{LOG_SCHEMA}.readers"])):
        return ""
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
        raise CheckFailed([found], cure=_ACCEPT.format(names[0]) if stored.phase == "running" else _COPY)
