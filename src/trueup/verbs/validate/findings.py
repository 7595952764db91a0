"""Errors: rows that stayed wrong. Listed, ignored, resolved, cleared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from trueup.capture.log.slot import lsn_text
from trueup.rows.keys import KeyValues
from trueup.verbs.validate.judge import Mismatch
from trueup.verbs.validate.meta import Meta, as_json
from trueup.verbs.validate.pending import FILE, Entry, key_text, key_values

STATES = ("new", "ignored", "resolved", "all")


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
        """As plain JSON values."""
        return {
            name: value.isoformat() if isinstance(value, datetime) else value for name, value in asdict(self).items()
        }


def add(meta: Meta, name: str, target: str, entry: Entry, found: Mismatch, now: datetime) -> None:
    """A row that stayed wrong; one that is listed already, ignored or not, is brought up to date."""
    values = {**_found(found), "first_at": entry.first_failed_at or now, "last_at": now}
    meta.rows(
        "add_error", FILE, name=name, source=entry.source, target=target, key=key_text(entry.key), op=entry.op,
        lsn=entry.last_lsn, **values,
    )  # fmt: skip


def still(meta: Meta, name: str, source: str, found: Mismatch, now: datetime) -> None:
    """It is wrong still."""
    meta.rows("still", FILE, name=name, source=source, key=key_text(found.key), now=now, **_found(found))


def resolve_keys(meta: Meta, name: str, keys: Sequence[tuple[str, KeyValues]], now: datetime) -> None:
    """These rows are equal now: errors of them resolve by themselves."""
    if keys:
        sources, texts = [key[0] for key in keys], [key_text(key[1]) for key in keys]
        meta.rows("resolve_keys", FILE, name=name, sources=sources, keys=texts, now=now)


def to_look_at(meta: Meta, name: str, *, before: datetime, most: int) -> list[tuple[str, KeyValues]]:
    """Open errors that were not looked at since."""
    found = meta.rows("open_errors", FILE, name=name, before=before, most=most)
    return [(row["source"], key_values(row["key"])) for row in found]


def open_count(meta: Meta, name: str) -> int:
    """How many are open."""
    return int(meta.rows("open_count", FILE, name=name)[0]["count"])


def listed(meta: Meta, name: str, *, state: str = "new", most: int | None = None) -> list[ErrorRow]:
    """The errors in a state, the oldest first."""
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
        for row in meta.rows("list", FILE, name=name, state=state, most=most)
    ]


def mark(meta: Meta, name: str, ids: Sequence[int] | None, state: str) -> int:
    """Ignore or resolve errors by hand (None: all); gives how many."""
    return _changed(meta, "mark", name=name, ids=None if ids is None else list(ids), state=state)


def clear(meta: Meta, name: str, ids: Sequence[int] | None) -> int:
    """Forget errors (None: all); gives how many."""
    return _changed(meta, "clear", name=name, ids=None if ids is None else list(ids))


def _changed(meta: Meta, block: str, **values: Any) -> int:
    from trueup.db.statements import load

    meta.need(values["name"])
    with meta.errors():
        return meta.connection.execute(load("trueup.verbs.validate", FILE)[block], values).rowcount


def _found(found: Mismatch) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "columns": list(found.columns),
        "source_row": None if found.source_row is None else as_json(found.source_row),
        "target_row": None if found.target_row is None else as_json(found.target_row),
    }
