"""Which alerts were sent to which target. A transaction claims what has to be sent, so that no other process sends it.

An alert counts as sent when its target has accepted it. A process that is killed before that leaves a claim, which ends
after some time: then another process sends the alert. So an alert may arrive twice, and is never lost.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from trueup.store import times

# Longer than a task that failed is listed.
_ONCE_SECONDS = 7 * 86400.0
# Longer than a target may take.
CLAIM_SECONDS = 60.0
_ROW = "target = :target AND alert = :alert"


@dataclass(frozen=True)
class Change:
    """An alert to send to a target: raised, changed, repeated or resolved."""

    alert: str
    how: str
    text: str
    since: str
    target: str = ""
    state: str = ""


def claim(
    connection: sqlite3.Connection,
    targets: Iterable[str],
    raised: Mapping[str, tuple[str, str]],
    is_known: Callable[[str], bool],
    *,
    once: Sequence[str],
    repeat_after: float,
) -> list[Change]:
    """Claim and return what has to be sent to the targets, for the alerts that are raised now (key -> text, state).

    An alert that is not raised is resolved only if it `is_known`: another process may see other sources. Those of the
    kinds `once` are not sent again, and are forgotten after some days.
    """
    changes: list[Change] = []
    for target in targets:
        rows = connection.execute("SELECT * FROM alerts WHERE target = ?", (target,)).fetchall()
        known = {str(row["alert"]): row for row in rows}
        changes += _raised(connection, target, raised, known, once, repeat_after)
        for key in known.keys() - raised.keys():
            changes += _ended(connection, known[key], is_known, once)
    return changes


def confirm(connection: sqlite3.Connection, changes: Sequence[Change]) -> None:
    """Record that changes were sent."""
    for change in changes:
        if change.how == "resolved":
            connection.execute(f"DELETE FROM alerts WHERE {_ROW}", vars(change))
        else:
            connection.execute(
                f"UPDATE alerts SET text = :text, state = :state, notified_at = :now, claimed_at = '' WHERE {_ROW}",
                {**vars(change), "now": times.now()},
            )


def release(connection: sqlite3.Connection, changes: Sequence[Change]) -> None:
    """End the claim on changes that could not be sent, so that they are tried again."""
    for change in changes:
        connection.execute(f"UPDATE alerts SET claimed_at = '' WHERE {_ROW}", vars(change))


def _raised(
    connection: sqlite3.Connection,
    target: str,
    raised: Mapping[str, tuple[str, str]],
    known: Mapping[str, sqlite3.Row],
    once: Sequence[str],
    repeat_after: float,
) -> Iterable[Change]:
    now = times.now()
    for key, (text, state) in raised.items():
        row = known.get(key)
        if row is None:
            connection.execute(
                "INSERT INTO alerts (target, alert, text, since, notified_at, state, claimed_at)"
                " VALUES (?, ?, ?, ?, '', ?, ?)",
                (target, key, text, now, state, now),
            )
            yield Change(key, "raised", text, now, target, state)
            continue
        how = "" if _is_claimed(row) else _how(row, state, 0.0 if _kind(key) in once else repeat_after)
        if how:
            _claim(connection, row, now)
            yield Change(key, how, text, str(row["since"]), target, state)


def _how(row: sqlite3.Row, state: str, repeat_after: float) -> str:
    if not row["notified_at"]:
        return "raised"
    if row["state"] != state:
        return "changed"
    return "repeated" if repeat_after and _age(row["notified_at"]) >= repeat_after else ""


def _ended(
    connection: sqlite3.Connection, row: sqlite3.Row, is_known: Callable[[str], bool], once: Sequence[str]
) -> Iterable[Change]:
    key, is_once = str(row["alert"]), _kind(row["alert"]) in once
    if _is_claimed(row) or not (_age(row["since"]) > _ONCE_SECONDS if is_once else is_known(key)):
        return
    if is_once or not row["notified_at"]:
        connection.execute(f"DELETE FROM alerts WHERE {_ROW}", {"target": row["target"], "alert": key})
        return
    _claim(connection, row, times.now())
    yield Change(key, "resolved", str(row["text"]), str(row["since"]), str(row["target"]), str(row["state"]))


def _claim(connection: sqlite3.Connection, row: sqlite3.Row, now: str) -> None:
    values = {"target": row["target"], "alert": row["alert"], "now": now}
    connection.execute(f"UPDATE alerts SET claimed_at = :now WHERE {_ROW}", values)


def _is_claimed(row: sqlite3.Row) -> bool:
    return bool(row["claimed_at"]) and _age(row["claimed_at"]) < CLAIM_SECONDS


def _kind(key: str) -> str:
    return key.partition(" ")[0]


def _age(moment: str) -> float:
    return (datetime.now(timezone.utc) - times.parse(moment)).total_seconds()
