"""Which alerts were sent: one transaction decides, so that several processes do not send the same alert."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from trueup.store import times

# Longer than a task that failed is listed.
_ONCE_SECONDS = 7 * 86400.0


@dataclass(frozen=True)
class Change:
    """An alert to send: raised, changed, repeated or resolved. `before` is its row in the store, to undo the change."""

    alert: str
    how: str
    text: str
    since: str
    before: tuple[str, str, str, str] | None = None


def change(
    connection: sqlite3.Connection,
    raised: Mapping[str, tuple[str, str]],
    is_known: Callable[[str], bool],
    *,
    once: Sequence[str],
    repeat_after: float,
) -> list[Change]:
    """Store the alerts that are raised now (key -> text, state), and return what has to be sent.

    An alert that is not raised is resolved only if it `is_known`: another process may see other sources. Those of the
    kinds `once` are not sent again, and are forgotten after some days.
    """
    now = times.now()
    rows = connection.execute("SELECT alert, text, since, notified_at, state FROM alerts").fetchall()
    known = {str(row["alert"]): row for row in rows}
    changes: list[Change] = []
    for key, (text, state) in raised.items():
        row = known.get(key)
        before = None if row is None else (row["text"], row["since"], row["notified_at"], row["state"])
        how = "raised" if row is None else "changed" if row["state"] != state else ""
        if row is not None and not how and repeat_after and _kind(key) not in once:
            how = "repeated" if _age(row["notified_at"]) >= repeat_after else ""
        since = now if row is None else str(row["since"])
        if how:
            changes.append(Change(key, how, text, since, before))
            connection.execute(
                "INSERT OR REPLACE INTO alerts (alert, text, since, notified_at, state) VALUES (?, ?, ?, ?, ?)",
                (key, text, since, now, state),
            )
    for key, row in known.items():
        is_over = _age(row["since"]) > _ONCE_SECONDS if _kind(key) in once else is_known(key)
        if key not in raised and is_over:
            connection.execute("DELETE FROM alerts WHERE alert = ?", (key,))
            if _kind(key) not in once:
                before = (row["text"], row["since"], row["notified_at"], row["state"])
                changes.append(Change(key, "resolved", str(row["text"]), str(row["since"]), before))
    return changes


def undo(connection: sqlite3.Connection, changes: Sequence[Change]) -> None:
    """Restore the alerts as they were before changes that could not be sent, so that they are tried again."""
    for each in changes:
        connection.execute("DELETE FROM alerts WHERE alert = ?", (each.alert,))
        if each.before is not None:
            connection.execute(
                "INSERT INTO alerts (alert, text, since, notified_at, state) VALUES (?, ?, ?, ?, ?)",
                (each.alert, *each.before),
            )


def _kind(key: str) -> str:
    return key.partition(" ")[0]


def _age(moment: str) -> float:
    return (datetime.now(timezone.utc) - times.parse(moment)).total_seconds()
