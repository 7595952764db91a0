"""Accepted differences: which were accepted, by whom, why and until when. Nothing is ever deleted."""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from trueup.errors import StoreError
from trueup.store import times
from trueup.store.values import from_json, safe_text, to_json, utf8

State = Literal["active", "expired", "revoked"]
_SHOWN = 5


class AcceptedDifference(NamedTuple):
    """One difference of a pair of nodes: its fingerprint (see `task.accepted`), its key, and its kind."""

    fingerprint: bytes
    pair: str
    key: tuple[str, ...]
    kind: str


@dataclass(frozen=True)
class Acceptance:
    """Differences of one report that are known and wanted. Times are UTC, as in `Task`."""

    id: str
    table_name: str
    nodes: str
    scope: Mapping[str, Any]
    reason: str
    accepted_by: str
    accepted_at: str
    until: str | None
    task_id: str
    report: str
    differences: int
    revoked_at: str | None = None
    revoked_by: str | None = None

    @property
    def short_id(self) -> str:
        """The start of the id, as the command line shows and accepts it."""
        return self.id[:8]

    def state(self, now: str) -> State:
        """Return whether it is in effect at a time."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.until is not None and self.until <= now else "active"


def add(
    connection: sqlite3.Connection,
    *,
    table: str,
    nodes: str,
    scope: Mapping[str, Any],
    reason: str,
    by: str,
    until: str | None,
    task_id: str,
    report: str,
    differences: Iterable[AcceptedDifference],
) -> Acceptance:
    """Record accepted differences, in the open transaction."""
    row = {
        "id": str(uuid.uuid4()),
        "table_name": utf8(table),
        "nodes": utf8(nodes),
        "scope": to_json(dict(scope)),
        "reason": safe_text(reason),
        "accepted_by": utf8(by),
        "accepted_at": times.now(),
        "until": until,
        "task_id": task_id,
        "report": utf8(report),
    }
    columns = ", ".join(row)
    marks = ", ".join(f":{name}" for name in row)
    seq = connection.execute(f"INSERT INTO acceptances ({columns}) VALUES ({marks})", row).lastrowid
    connection.executemany(
        "INSERT INTO accepted_differences (acceptance, fingerprint, pair, key, kind) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT DO NOTHING",
        ((seq, each.fingerprint, each.pair, json.dumps(each.key), each.kind) for each in differences),
    )
    return get(connection, str(row["id"]))


def listed(connection: sqlite3.Connection, table: str | None = None) -> list[Acceptance]:
    """Return the acceptances of a table, or of all tables, the newest first; also those that are not in effect."""
    rows = connection.execute(
        f"{_SELECT} WHERE :table IS NULL OR table_name = :table ORDER BY seq DESC", {"table": table}
    )
    return [_acceptance(row) for row in rows]


def differences(connection: sqlite3.Connection, acceptance: Acceptance) -> list[AcceptedDifference]:
    """Return the differences of an acceptance, by pair and key."""
    rows = connection.execute(
        "SELECT d.fingerprint, d.pair, d.key, d.kind FROM accepted_differences d JOIN acceptances a"
        " ON a.seq = d.acceptance WHERE a.id = ? ORDER BY d.pair, d.key",
        (acceptance.id,),
    )
    return [AcceptedDifference(bytes(row[0]), row[1], tuple(json.loads(row[2])), row[3]) for row in rows]


def get(connection: sqlite3.Connection, id_or_prefix: str) -> Acceptance:
    """Return the acceptance with this id, or the only one whose id starts with it. Raises StoreError otherwise."""
    prefix = utf8(id_or_prefix).strip().lower()
    query = f"{_SELECT} WHERE :p <> '' AND instr(id, :p) = 1 ORDER BY seq DESC"
    rows = connection.execute(query, {"p": prefix}).fetchall()
    if len(rows) == 1:
        return _acceptance(rows[0])
    cure = "list the accepted differences with: trueup accept --list --with-ended"
    if not rows:
        raise StoreError(f"acceptance {id_or_prefix!r} does not exist", cure=cure)
    shown = ", ".join(row["id"] for row in rows[:_SHOWN])
    raise StoreError(f"{len(rows)} acceptances have an id that starts with {id_or_prefix!r}: {shown}", cure=cure)


def revoke(connection: sqlite3.Connection, id_or_prefix: str, by: str) -> Acceptance:
    """End an acceptance, in the open transaction. Raises StoreError if it was revoked already."""
    acceptance = get(connection, id_or_prefix)
    if acceptance.revoked_at is not None:
        message = f"acceptance {acceptance.short_id} was revoked at {acceptance.revoked_at} by {acceptance.revoked_by}"
        raise StoreError(message, cure="list those that are in effect with: trueup accept --list")
    connection.execute(
        "UPDATE acceptances SET revoked_at = ?, revoked_by = ? WHERE id = ?", (times.now(), utf8(by), acceptance.id)
    )
    return get(connection, acceptance.id)


_SELECT = (
    "SELECT a.*, (SELECT count(*) FROM accepted_differences d WHERE d.acceptance = a.seq) AS differences"
    " FROM acceptances a"
)


def _acceptance(row: sqlite3.Row) -> Acceptance:
    values = {name: row[name] for name in Acceptance.__dataclass_fields__}
    return Acceptance(**{**values, "scope": from_json(values["scope"])})
