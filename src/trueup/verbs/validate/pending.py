"""Row changes that are not proven yet. They are stored in the meta database; memory holds at most one page of them.

When is a row that differs an error? After each check of the row, a mark is written into the log of the source
(`suspect_lsn`). When the changes have been read up to the mark and none of them is of this key, the source row had not
changed: the target was wrong at that check, and no change was in flight. If that is so for longer than
`row_error_delay`, the row is an error. A newer change starts the time again: a row that keeps changing is *hot*, and
never an error.

How is a hot row proven? Each check also stores a digest of the row of the source (`samples`). When the target shows one
of these rows later, all changes up to that check have arrived.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from trueup.db.storable import as_json
from trueup.rows.keys import KeyValues
from trueup.verbs.validate.judge import Mismatch
from trueup.verbs.validate.meta import Meta

# A table of the source, and a key.
TableKey = tuple[str, KeyValues]
FILE = "pending.sql"
_MAX_SAMPLES = 16
TRUNCATE = "truncate"
SCRUB = "scrub"
# A change on the target that is not one of the syncer.
TARGET = "target"
_WITHOUT_POSITION = (SCRUB, TARGET)


@dataclass(frozen=True)
class Touch:
    """The changes of one key in a batch: the positions of the first and the last one."""

    op: str
    first_lsn: int
    last_lsn: int
    xid: int
    at: datetime | None


@dataclass(frozen=True)
class Entry:
    """One pending key: its changes are not proven yet."""

    source: str
    key: KeyValues
    op: str
    first_lsn: int
    last_lsn: int
    xid: int
    committed_at: datetime | None
    first_failed_at: datetime | None = None
    suspect_lsn: int | None = None
    suspect_at: datetime | None = None
    checks: int = 0
    is_hot: bool = False
    # Per check: the position of the last known change, and the digest of the row of the source.
    samples: tuple[tuple[int, str | None], ...] = field(default=())

    @classmethod
    def of(cls, source: str, key: KeyValues, touch: Touch) -> Entry:
        """Return an entry for a key that was never checked."""
        return cls(source, key, touch.op, touch.first_lsn, touch.last_lsn, touch.xid, touch.at)

    @property
    def place(self) -> TableKey:
        """Return the table and the key."""
        return self.source, self.key

    def as_touch(self, op: str = "") -> Touch:
        """Return the changes of the entry."""
        return Touch(op or self.op, self.first_lsn, self.last_lsn, self.xid, self.committed_at)

    def touched(self, touch: Touch) -> Entry:
        """Return the entry after newer changes: earlier checks do not count for them."""
        if touch.last_lsn <= self.last_lsn and self.op not in _WITHOUT_POSITION:
            return self
        return replace(
            self,
            op=touch.op,
            # Also of a row that differed before these changes: a marker between them must wait for its decision.
            first_lsn=min(self.first_lsn, touch.first_lsn),
            last_lsn=touch.last_lsn,
            xid=touch.xid,
            committed_at=touch.at,
            # The mark stays: until the syncer has passed it, another check would find the same.
            first_failed_at=None,
            suspect_at=None,
            is_hot=self.is_hot or self.checks > 0,
        )

    def compared_by_digest(self, mismatch: Mismatch) -> Entry:
        """Return the entry after a check behind the cut-over position, where newer changes are not read.

        A newer change shows as another row on the source than at the last check; it starts the time again.
        """
        if not self.samples or self.samples[-1][1] == mismatch.source_digest:
            return self
        return replace(self, first_failed_at=None, suspect_at=None, is_hot=True)

    def failed(self, mismatch: Mismatch, mark: int, now: datetime, delay: timedelta) -> Entry | None:
        """Return the entry after a check that found a difference.

        Returns None if the target shows the row that the source had after the last change: then the change is proven.
        """
        shown = [lsn for lsn, digest in self.samples if digest == mismatch.target_digest]
        first = max([self.first_lsn, *(lsn + 1 for lsn in shown)])
        if shown and max(shown) >= self.last_lsn:
            return None
        sample = (self.last_lsn, mismatch.source_digest)
        # The last one is always that of the last check: see `compared_by_digest`.
        samples = (*(earlier for earlier in self.samples if earlier[0] >= first and earlier != sample), sample)
        # A mark that is late enough is kept until the changes are read up to it; a newer one might never be reached.
        is_late = self._age() >= delay
        return replace(
            self,
            first_lsn=min(first, self.last_lsn),
            first_failed_at=self.first_failed_at or now,
            suspect_lsn=self.suspect_lsn if is_late else mark,
            suspect_at=self.suspect_at if is_late else now,
            checks=self.checks + 1,
            samples=samples[-_MAX_SAMPLES:],
        )

    def is_error(self, position: int, delay: timedelta) -> bool:
        """Return whether the row was wrong for `delay`, and changes are read up to the mark of the last check."""
        return self.suspect_lsn is not None and position >= self.suspect_lsn and self._age() >= delay

    def _age(self) -> timedelta:
        """Return for how long the row had been wrong when the mark was written."""
        if self.suspect_at is None or self.first_failed_at is None:
            return timedelta(-1)
        return self.suspect_at - self.first_failed_at


def key_text(key: KeyValues) -> str:
    """Format a key for the meta database."""
    return json.dumps(list(key), ensure_ascii=False)


def key_values(text: str) -> KeyValues:
    """Parse a key written by `key_text`."""
    return tuple(json.loads(text))


def places_json(keys: Sequence[TableKey]) -> str:
    """Format keys for a statement: thousands of elements are sent much faster as JSON than as an array."""
    return json.dumps([(source, key_text(key)) for source, key in keys], ensure_ascii=False)


def due(
    meta: Meta, name: str, *, now: datetime, position: int, applied: int, delay: timedelta, limit: int
) -> list[Entry]:
    """Return the entries that are due and whose mark is before `position`.

    An entry that has been wrong for `delay` is checked once more when its mark is before `applied`.
    """
    rows = meta.rows(
        "due", FILE, name=name, now=now, position=position, applied=applied, late=now - delay, delay=delay, limit=limit
    )
    return [_entry(row) for row in rows]


def known(meta: Meta, name: str, keys: Sequence[TableKey]) -> dict[TableKey, Entry]:
    """Return the entries of those keys that are pending."""
    entries = [_entry(row) for row in meta.rows("known", FILE, name=name, places=places_json(keys))]
    return {entry.place: entry for entry in entries}


def put(meta: Meta, name: str, entries: Sequence[Entry], *, due_at: datetime) -> None:
    """Write entries; an entry replaces the one of the same key."""
    if entries:
        meta.rows("put", FILE, name=name, due_at=due_at, lines=as_json([_line(entry) for entry in entries]))


def drop(meta: Meta, name: str, keys: Sequence[TableKey]) -> None:
    """Remove the entries of keys that are decided."""
    if keys:
        meta.rows("drop", FILE, name=name, places=places_json(keys))


def count(meta: Meta, name: str) -> int:
    """Return the number of entries."""
    return int(meta.value("count", FILE, name=name))


def _line(entry: Entry) -> dict[str, Any]:
    line = {field: getattr(entry, field) for field in entry.__dataclass_fields__}
    times = {name: value.isoformat() for name, value in line.items() if isinstance(value, datetime)}
    return {**line, **times, "key": key_text(entry.key)}


def _entry(row: dict[str, Any]) -> Entry:
    samples = tuple((int(lsn), digest) for lsn, digest in row["samples"])
    return Entry(**{**row, "key": key_values(row["key"]), "samples": samples})
