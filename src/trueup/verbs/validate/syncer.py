"""How far is the syncer? Only what it has applied is judged.

A subscription tells it (the end of the last applied transaction, and what it answered to keepalives), a slot on the
source does for any other reader of the log, `trueup sync` leaves a mark, and of all others a lag is taken for granted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trueup.capture.log.slot import positions
from trueup.db.connection import Connection, one_value
from trueup.db.statements import load
from trueup.errors import CheckFailed, ConfigError
from trueup.verbs.validate.routes import Name

KINDS = ("subscription", "slot", "sync", "lag")
_READY = "r"


@dataclass
class Syncer:
    """One way to know the position; `place` asks with sessions of the source and of the target."""

    kind: str
    names: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    seconds: float = 0.0
    may_ask_origin: bool = False
    # Of a lag: when the source's log was where.
    _seen: deque[tuple[float, int]] = field(default_factory=deque, repr=False)

    def __str__(self) -> str:
        return f"a lag of {self.seconds:g} s" if self.kind == "lag" else f"{self.kind} {', '.join(self.names)}"

    def place(self, source: Connection, target: Connection) -> int:
        """Before this position, all that was committed on the source is applied on the target."""
        statements = load("trueup.verbs.validate", "syncer.sql")
        if self.kind == "lag":
            return self._lagging(positions(source).flushed)
        if self.kind == "subscription":
            block = "subscription_with_origin" if self.may_ask_origin else "subscription"
            return min(_number(target, statements[block], oid=number) for number in self.numbers)
        if self.kind == "slot":
            return _number(source, statements["slot"], slot=self.names[0])
        return _number(target, statements["mark"], sync=self.names[0])

    def _lagging(self, flushed: int) -> int:
        now = time.monotonic()
        self._seen.append((now, flushed))
        place = 0
        while self._seen and self._seen[0][0] <= now - self.seconds:
            place = self._seen.popleft()[1]
        if place:
            # It stays true until a later one takes its place.
            self._seen.appendleft((now - self.seconds, place))
        return place


def find_syncer(source: Connection, target: Connection, wish: str, tables: Sequence[Name]) -> Syncer:
    """The syncer that was named, else the subscriptions that fill the tables, else the only mark of a sync."""
    statements = load("trueup.verbs.validate", "syncer.sql")
    kind, _, name = wish.partition(":")
    if wish and (kind not in KINDS or not name):
        raise ConfigError(
            f"'{wish}' names no syncer", cure="write subscription:NAME, slot:NAME, sync:NAME, or lag:SECONDS"
        )
    if kind == "lag":
        return Syncer("lag", seconds=_seconds(name))
    if kind in ("slot", "sync"):
        found = Syncer(kind, (name,))
        _check(found, source, target)
        return found
    if kind == "subscription":
        names = [each.strip() for each in name.split(",")]
        rows = [row for each in names for row in target.execute(statements["named"], {"subscription": each}).fetchall()]
        if len(rows) < len(names):
            raise CheckFailed([f"there is no subscription {name}"], cure="see pg_subscription on the target")
    else:
        given = {"schemas": [pair[0] for pair in tables], "tables": [pair[1] for pair in tables]}
        rows = target.execute(statements["subscriptions"], given).fetchall()
    if rows:
        may = bool(one_value(target.execute(statements["may_ask_origin"])))
        return Syncer("subscription", tuple(row[0] for row in rows), tuple(int(row[1]) for row in rows), 0.0, may)
    if one_value(target.execute(statements["has_mark"])):
        marks = [str(row[0]) for row in target.execute(statements["marks"]).fetchall()]
        if len(marks) == 1:
            return Syncer("sync", tuple(marks))
    raise CheckFailed(
        ["it is not known how far the target is behind: no subscription fills these tables, and no trueup sync"],
        cure="name it with --syncer: subscription:NAME, slot:NAME (on the source), sync:NAME, or lag:SECONDS",
    )


def copying(target: Connection) -> set[Name]:
    """Tables that a subscription still copies: their changes are not applied in order yet."""
    rows = target.execute(load("trueup.verbs.validate", "syncer.sql")["stages"]).fetchall()
    return {(str(schema), str(table)) for schema, table, state in rows if state != _READY}


def _check(syncer: Syncer, source: Connection, target: Connection) -> None:
    block, session = ("slot", source) if syncer.kind == "slot" else ("mark", target)
    statements = load("trueup.verbs.validate", "syncer.sql")
    if syncer.kind == "sync" and not one_value(target.execute(statements["has_mark"])):
        raise CheckFailed(["the target has no mark of a trueup sync"], cure="run the sync once, or use lag:SECONDS")
    if session.execute(statements[block], {syncer.kind: syncer.names[0]}).fetchone() is None:
        raise CheckFailed([f"there is no {syncer.kind} {syncer.names[0]}"], cure="check its name")


def _number(connection: Connection, query: Any, **values: Any) -> int:
    row = connection.execute(query, values).fetchone()
    return int(row[0]) if row and row[0] is not None else 0


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 86400 * 30:
        raise ConfigError(f"lag:{text} is no number of seconds", cure="write it as lag:10")
    return seconds
