"""The errors of a validation: rows that stayed wrong. Add, list, ignore, resolve, clear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from trueup.capture.log.slot import lsn_text
from trueup.db.storable import as_json
from trueup.proof import store
from trueup.rows.keys import KeyValues
from trueup.verbs.validate.judge import Mismatch
from trueup.verbs.validate.meta import Meta
from trueup.verbs.validate.pending import FILE, Entry, TableKey, key_text, key_values, places_json


@dataclass(frozen=True)
class ErrorRow:
    """One row that stayed wrong: `missing` on the target, `extra` there, or `changed` in some columns."""

    id: int
    source: str
    target: str
    key: KeyValues
    kind: str
    columns: tuple[str, ...]
    source_row: dict[str, Any] | None
    target_row: dict[str, Any] | None
    op: str
    lsn: str
    state: str
    first_at: datetime
    last_at: datetime
    resolved_at: datetime | None
    resolved_by: str | None

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            name: value.isoformat() if isinstance(value, datetime) else value for name, value in asdict(self).items()
        }


def add(meta: Meta, name: str, errors: Sequence[tuple[str, Entry, Mismatch]], now: datetime) -> None:
    """Add errors (target, entry, mismatch), or update those of the same keys that are open or ignored."""
    lines = [
        {
            **_line(entry.source, entry.key, mismatch),
            "target": target,
            "op": entry.op,
            "lsn": entry.last_lsn,
            "first_at": (entry.first_failed_at or now).isoformat(),
        }
        for target, entry, mismatch in errors
    ]
    if lines:
        meta.rows("add_error", FILE, name=name, now=now, lines=as_json(lines))


def still_wrong(meta: Meta, name: str, failed: Mapping[TableKey, Mismatch], now: datetime) -> None:
    """Update open or ignored errors after a check that found the rows still wrong."""
    lines = [_line(source, key, mismatch) for (source, key), mismatch in failed.items()]
    if lines:
        meta.rows("still", FILE, name=name, now=now, lines=as_json(lines))


def resolve_keys(meta: Meta, name: str, keys: Sequence[TableKey], now: datetime) -> None:
    """Resolve the errors of rows that became equal, also ignored ones: a later loss is another error."""
    if keys:
        meta.rows("resolve_keys", FILE, name=name, places=places_json(keys), now=now)


def known(meta: Meta, name: str, table: str, keys: Sequence[KeyValues]) -> set[KeyValues]:
    """Return those of the keys of a table that have an open or an ignored error."""
    rows = meta.rows("known_errors", FILE, name=name, places=places_json([(table, key) for key in keys]))
    return {key_values(row["key"]) for row in rows}


def to_check(
    meta: Meta, name: str, tables: Sequence[str], *, state: str, before: datetime, limit: int
) -> list[TableKey]:
    """Return the keys of the errors of these tables in a state that were last checked before a time."""
    rows = meta.rows("errors_to_check", FILE, name=name, tables=list(tables), state=state, before=before, limit=limit)
    return [(row["source"], key_values(row["key"])) for row in rows]


def open_count(meta: Meta, name: str) -> int:
    """Return the number of open and ignored errors."""
    return int(meta.value("open_count", FILE, name=name))


def list_errors(meta: Meta, name: str, *, state: str = "new", limit: int | None = None) -> list[ErrorRow]:
    """Return the errors in a state (new, ignored, resolved, all), the oldest first."""
    meta.need(name)
    return [
        ErrorRow(
            **{
                **row,
                "key": key_values(row["key"]),
                "columns": tuple(row["columns"]),
                "lsn": lsn_text(row["lsn"]),
            }
        )
        for row in meta.rows("list", FILE, name=name, state=state, limit=limit)
    ]


def count_errors(meta: Meta, name: str, *, state: str = "new") -> int:
    """Return the number of errors in a state (new, ignored, resolved, all)."""
    meta.need(name)
    return int(meta.value("count_errors", FILE, name=name, state=state))


def set_state(meta: Meta, name: str, ids: Sequence[int] | None, state: str) -> int:
    """Ignore or resolve errors by hand (None: all of them); return the number of errors."""
    meta.need(name)
    with meta.transaction():
        if state == "resolved":
            _void(meta, name, ids, "errors were resolved by hand")
        return meta.affected("mark", FILE, name=name, ids=None if ids is None else list(ids), state=state)


def clear(meta: Meta, name: str, ids: Sequence[int] | None) -> int:
    """Delete errors (None: all of them); return the number of errors."""
    meta.need(name)
    with meta.transaction():
        _void(meta, name, ids, "errors were deleted from the list")
        return meta.affected("clear", FILE, name=name, ids=None if ids is None else list(ids))


def _void(meta: Meta, name: str, ids: Sequence[int] | None, reason: str) -> None:
    """Void the certificates of tables whose rows may still differ, and are not listed any more.

    The pass of the scrub begins again: it may have passed these rows, and without a certificate there is none to void.
    """
    # No block is stored meanwhile: the scrub takes a row that is listed for decided, and a block that was hashed after
    # the certificate was voided makes it valid again.
    meta.rows("lock_row", name=name)
    rows = meta.rows("tables_of_errors", FILE, name=name, ids=None if ids is None else list(ids))
    store.void(meta.connection, name, reason, [row["source"] for row in rows])
    for row in rows:
        meta.rows("restart_pass", name=name, source=row["source"])


def _line(source: str, key: KeyValues, mismatch: Mismatch) -> dict[str, Any]:
    return {
        "source": source,
        "key": key_text(key),
        "kind": mismatch.kind,
        "columns": list(mismatch.columns),
        "source_row": mismatch.source_row,
        "target_row": mismatch.target_row,
    }
