"""Row changes that are not proven yet. They live in the meta database; only a page of them is ever in memory.

When is a row that differs an error? Each look at it ends with a mark in the source's log (`suspect`). Once the changes
were read up to that mark and none of them was of this key, the source had not changed since: the target was wrong at
that look, and nothing was on its way. If that has been so for longer than `row-error-delay`, it is an error. A newer
change begins the time anew: a row that keeps changing is *hot*, and never an error.

How is a hot row proven? Each look also notes the source's row hash (`samples`). When the target shows one of them
later, all changes up to that look have arrived.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from trueup.rows.keys import KeyValues
from trueup.verbs.validate.judge import Mismatch
from trueup.verbs.validate.meta import Meta, as_json

FILE = "pending.sql"
_SAMPLES = 16
TRUNCATE = "truncate"
SWEEP = "sweep"


@dataclass(frozen=True)
class Touch:
    """The changes of one key in a batch: the first and the last of them."""

    op: str
    first_lsn: int
    last_lsn: int
    xid: int
    at: datetime | None


@dataclass(frozen=True)
class Entry:
    """One key that is not proven yet."""

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
    # [position of the last change known at that look, the source's row hash then]
    samples: tuple[tuple[int, int | None], ...] = field(default=())

    @classmethod
    def of(cls, source: str, key: KeyValues, touch: Touch) -> Entry:
        """A key that was never looked at."""
        return cls(source, key, touch.op, touch.first_lsn, touch.last_lsn, touch.xid, touch.at)

    def as_touch(self, op: str = "") -> Touch:
        """Its changes, as they came."""
        return Touch(op or self.op, self.first_lsn, self.last_lsn, self.xid, self.committed_at)

    def touched(self, touch: Touch) -> Entry:
        """After newer changes: what was seen of the older ones says nothing of these."""
        if touch.last_lsn <= self.last_lsn and self.op != SWEEP:
            return self
        return replace(
            self,
            op=touch.op,
            first_lsn=touch.first_lsn if self.op == SWEEP else min(self.first_lsn, touch.first_lsn),
            last_lsn=touch.last_lsn,
            xid=touch.xid,
            committed_at=touch.at,
            # The mark stays: until it is passed, another look would find the same.
            first_failed_at=None,
            suspect_at=None,
            is_hot=self.is_hot or self.checks > 0,
        )

    def failed(self, found: Mismatch, mark: int, now: datetime, delay: timedelta) -> Entry | None:
        """After a look at which the sides differed; None if the target shows what the source was at an earlier look."""
        seen = [lsn for lsn, row in self.samples if row == found.target_hash]
        first = max([self.first_lsn, *(lsn + 1 for lsn in seen)])
        if seen and max(seen) >= self.last_lsn:
            return None
        samples = (*(each for each in self.samples if each[0] >= first), (self.last_lsn, found.source_hash))
        # A mark that is late enough is kept until the changes are read up to it: a newer one would move away from us.
        is_late = self._age() >= delay
        return replace(
            self,
            first_lsn=min(first, self.last_lsn),
            first_failed_at=self.first_failed_at or now,
            suspect_lsn=self.suspect_lsn if is_late else mark,
            suspect_at=self.suspect_at if is_late else now,
            checks=self.checks + 1,
            samples=_unique(samples)[-_SAMPLES:],
        )

    def is_error(self, position: int, delay: timedelta) -> bool:
        """Whether it was wrong for so long, with all changes up to the last look known and none of this key."""
        return self.suspect_lsn is not None and position >= self.suspect_lsn and self._age() >= delay

    def _age(self) -> timedelta:
        """For how long it was wrong when it was marked."""
        if self.suspect_at is None or self.first_failed_at is None:
            return timedelta(-1)
        return self.suspect_at - self.first_failed_at


def _unique(samples: Iterable[tuple[int, int | None]]) -> tuple[tuple[int, int | None], ...]:
    return tuple(dict.fromkeys(samples))


def key_text(key: KeyValues) -> str:
    """A key as the meta database has it."""
    return json.dumps(list(key), ensure_ascii=False)


def key_values(text: str) -> KeyValues:
    """And back."""
    return tuple(json.loads(text))


def due(meta: Meta, name: str, *, now: datetime, position: int, most: int) -> list[Entry]:
    """The next page of those whose time has come, and whose mark is passed."""
    found = meta.rows("due", FILE, name=name, now=now, position=position, most=most)
    return [_entry(row) for row in found]


def known(meta: Meta, name: str, keys: Sequence[tuple[str, KeyValues]]) -> dict[tuple[str, KeyValues], Entry]:
    """Which of these keys are pending."""
    sources, texts = [source for source, _ in keys], [key_text(key) for _, key in keys]
    found = [_entry(row) for row in meta.rows("known", FILE, name=name, sources=sources, keys=texts)]
    return {(entry.source, entry.key): entry for entry in found}


def put(meta: Meta, name: str, entries: Sequence[Entry], *, due_at: datetime) -> None:
    """Write entries; those of the same key are replaced."""
    if entries:
        meta.rows("put", FILE, name=name, due_at=due_at, lines=as_json([_line(entry) for entry in entries]))


def drop(meta: Meta, name: str, keys: Sequence[tuple[str, KeyValues]]) -> None:
    """These are decided."""
    if keys:
        meta.rows("drop", FILE, name=name, sources=[key[0] for key in keys], keys=[key_text(key[1]) for key in keys])


def count(meta: Meta, name: str) -> int:
    """How many there are."""
    return int(meta.rows("count", FILE, name=name)[0]["count"])


def _line(entry: Entry) -> dict[str, Any]:
    line = {field: getattr(entry, field) for field in entry.__dataclass_fields__}
    times = {name: value.isoformat() for name, value in line.items() if isinstance(value, datetime)}
    return {**line, **times, "key": key_text(entry.key)}


def _entry(row: dict[str, Any]) -> Entry:
    samples = tuple((int(lsn), None if mark is None else int(mark)) for lsn, mark in row["samples"])
    return Entry(**{**row, "key": key_values(row["key"]), "samples": samples})
