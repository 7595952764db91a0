"""The size of a change log, and its maximum size."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import sql

from trueup.config.wording import size_text
from trueup.db.connection import Connection, one_row
from trueup.db.statements import load
from trueup.verbs.sync.link import log_table
from trueup.verbs.sync.status import waiting

# A change log that is at least this full is a warning.
_NEARLY_FULL = 0.8


@dataclass(frozen=True)
class Room:
    """The size of a change log and its maximum size in bytes (None: no limit), and since when it is full."""

    bytes: int
    max_bytes: int | None
    full_since: str | None

    def __str__(self) -> str:
        text = size_text(self.bytes)
        if self.full_since is not None:
            return f"{text}: CLOSED since {self.full_since}: the maximum size was reached, later changes are not in it"
        if self.max_bytes is None:
            return text
        text += f" of at most {size_text(self.max_bytes)}"
        if self.bytes < _NEARLY_FULL * self.max_bytes:
            return text
        state = "nearly full" if self.bytes < self.max_bytes else "over its maximum size"
        return f"{text}: WARNING: {state}. Run rounds in this direction (trueup sync run), or finish the switchover"


def room(source: Connection, name: str) -> Room | None:
    """Return the size of a change log, or None if there is no change log."""
    if waiting(source, name) is None:
        return None
    statements = load("trueup.verbs.sync", "round.sql")
    size, max_bytes = one_row(source.execute(statements["room"], {"sync": name}))
    query = sql.SQL(statements["waiting"]).format(log=log_table(name))
    since = one_row(source.execute(query, {"sources": None}))[3]
    return Room(size, max_bytes, None if since is None else f"{since:%Y-%m-%d %H:%M:%S} UTC")
