"""The syncer: what applies the changes on the target. Only changes that it has applied are judged.

Its position is reported by the subscriptions that fill the tables, by a slot on the source (for any other reader of the
log), or by the mark of a `trueup sync`; for other tools, a fixed lag is assumed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from typing_extensions import LiteralString

from trueup.capture.log.slot import flushed_position, lsn_number
from trueup.config.model import Node
from trueup.db.connection import Connection, one_value
from trueup.db.database_identity import identity
from trueup.db.names import display_part
from trueup.db.node import connect
from trueup.db.statements import load
from trueup.db.trust import check_schema
from trueup.errors import CheckFailed, ConfigError

KINDS = ("subscription", "slot", "sync", "lag")
_READY = "r"
_MAX_LAG = 86400 * 30


class SubscriptionDropped(CheckFailed):
    """The subscription that fills the tables does not exist any more; waiting does not help."""


@dataclass
class Syncer:
    """Returns the position of the syncer, asked with sessions of the source and of the target."""

    kind: str
    names: tuple[str, ...] = ()
    oids: tuple[int, ...] = ()
    seconds: float = 0.0
    may_ask_origin: bool = False
    # For a lag: times, and the flushed position of the source at each of them.
    _flushed: deque[tuple[float, int]] = field(default_factory=deque, repr=False)

    def __str__(self) -> str:
        return f"a lag of {self.seconds:g} s" if self.kind == "lag" else f"{self.kind} {', '.join(self.names)}"

    def position(self, source: Connection, target: Connection) -> int:
        """Return a position before which everything that was committed on the source is applied on the target."""
        statements = _statements()
        if self.kind == "lag":
            return self._lagging(flushed_position(source))
        if self.kind == "subscription":
            statement = "subscription_with_origin" if self.may_ask_origin else "subscription"
            return min(
                _subscribed(target, statements[statement], oid, name)
                for oid, name in zip(self.oids, self.names, strict=True)
            )
        if self.kind == "slot":
            return _number(source, statements["slot"], slot=self.names[0])
        return _number(target, statements["mark"], sync=self.names[0])

    def _lagging(self, flushed: int) -> int:
        """Return the flushed position of `seconds` ago; 0 if it is not known yet."""
        now = time.monotonic()
        self._flushed.append((now, flushed))
        position = 0
        while self._flushed and self._flushed[0][0] <= now - self.seconds:
            position = self._flushed.popleft()[1]
        if position:
            # It holds until a later position is old enough.
            self._flushed.appendleft((now - self.seconds, position))
        return position


class SyncerLimit:
    """The limit of the stream `trueup_changes`: the position of the syncer, asked with sessions of its own."""

    def __init__(self, nodes: tuple[Node, Node], syncer: Syncer, cutover: str) -> None:
        self._nodes = nodes
        self._syncer = syncer
        self._cutover = cutover
        self._sessions: list[Connection] = []

    def position(self) -> int | None:
        """Return the position of the syncer, or the cut-over position if it is lower."""
        if not self._sessions:
            self._sessions = [connect(node, application="trueup validate limit") for node in self._nodes]
        source, target = self._sessions
        try:
            position = self._syncer.position(source, target)
        except Exception:
            self._sessions = []
            raise
        return min(position, lsn_number(self._cutover)) if self._cutover else position


def find_syncer(
    source: Connection,
    target: Connection,
    option: str,
    tables: Sequence[tuple[str, str]],
    former: Syncer | None = None,
) -> Syncer:
    """Return the syncer of the option, else the subscriptions that fill the tables, else the only `trueup sync`.

    Raise CheckFailed if there is none; SubscriptionDropped if `former` was one that does not exist any more.
    """
    statements = _statements()
    kind, _, name = option.partition(":")
    if option and (kind not in KINDS or not name):
        raise ConfigError(
            f"--syncer {option!r} is not valid", cure="use subscription:NAME, slot:NAME, sync:NAME, or lag:SECONDS"
        )
    if kind == "lag":
        return Syncer("lag", seconds=_seconds(name))
    if kind == "slot":
        if source.execute(statements["slot"], {"slot": name}).fetchone() is None:
            raise CheckFailed([f"slot {name} does not exist on the source"], cure="check its name")
        return Syncer("slot", (name,))
    if kind == "sync":
        return Syncer("sync", (_sync_from(source, target, name),))
    if kind == "subscription":
        names = [part.strip() for part in name.split(",")]
        rows = [row for part in names for row in target.execute(statements["named"], {"subscription": part}).fetchall()]
        if len(rows) < len(names):
            raise CheckFailed(
                [f"subscription {name} does not exist on the target"], cure="check the names in pg_subscription"
            )
    else:
        values = {"schemas": [table[0] for table in tables], "tables": [table[1] for table in tables]}
        rows = target.execute(statements["subscriptions"], values).fetchall()
        # Positions of another publisher mean nothing here. A slot may have been renamed: then all are taken.
        own = fed_by(source, subscription_versions(target, [int(row[1]) for row in rows]))
        rows = [row for row in rows if int(row[1]) in own] or rows
    if rows:
        may_ask = bool(one_value(target.execute(statements["may_ask_origin"])))
        return Syncer("subscription", tuple(row[0] for row in rows), tuple(int(row[1]) for row in rows), 0.0, may_ask)
    marks = _marks(source, target)
    if len(marks) == 1:
        return Syncer("sync", tuple(marks))
    if former is not None and former.kind == "subscription":
        former.position(source, target)
    raise CheckFailed(
        ["the position of the target is unknown: no subscription and no single trueup sync fills these tables"],
        cure="name the syncer with --syncer: subscription:NAME, slot:NAME (on the source), sync:NAME, or lag:SECONDS",
    )


# The subscriptions of a syncer: OID, slot, and the version of their row in the catalog ("": the role may not see it).
Versions = tuple[tuple[int, str | None, str], ...]


def subscription_versions(target: Connection, oids: Sequence[int]) -> Versions:
    """Return subscriptions, with another version after each alteration."""
    statements = _statements()
    may_see = one_value(target.execute(statements["may_see_versions"]))
    statement = statements["versions" if may_see else "without_versions"]
    return tuple(
        (int(oid), slot, str(version)) for oid, slot, version in target.execute(statement, {"oids": list(oids)})
    )


def recognized(source: Connection, subscriptions: Versions) -> tuple[int, ...]:
    """Return the OIDs of the subscriptions that replicate the source, as far as an alteration of them would be seen."""
    return fed_by(source, tuple(each for each in subscriptions if each[2]))


def why_unrecognized(subscriptions: Versions, role: str) -> str:
    """Return why changes of a subscription cannot be distinguished from those of other writers; "" if they can."""
    if all(version for *_, version in subscriptions):
        return ""
    return (
        "what the subscription applies is compared on the target, too, because the role does not see whether it is"
        f" altered; to compare less, run there: GRANT SELECT (xmin) ON pg_subscription TO {display_part(role)}"
    )


def fed_by(source: Connection, subscriptions: Versions) -> tuple[int, ...]:
    """Return the OIDs of the subscriptions whose slot is in the source: others replicate another database."""
    slots = {str(row[0]) for row in source.execute(_statements()["slots"]).fetchall()}
    return tuple(oid for oid, slot, _ in subscriptions if slot in slots)


def copying_tables(target: Connection) -> set[tuple[str, str]]:
    """Return the tables that a subscription still copies."""
    rows = target.execute(_statements()["stages"]).fetchall()
    return {(str(schema), str(table)) for schema, table, state in rows if state != _READY}


def _marks(source: Connection, target: Connection, name: str = "") -> list[str]:
    """Return the syncs from the source that have a mark on the target, all or those of a name."""
    statements = _statements()
    if not (check_schema(target, "trueup") and one_value(target.execute(statements["has_mark"]))):
        return []
    rows = target.execute(statements["marks"], {"source": identity(source), "name": name}).fetchall()
    return [str(row[0]) for row in rows]


def _sync_from(source: Connection, target: Connection, name: str) -> str:
    """Return the sync of this name in the target: with a suffix if a sync from another source has the name too."""
    marks = _marks(source, target, name)
    if not marks:
        raise CheckFailed(
            [f"the target has no mark of a trueup sync {name} from this source"],
            cure="check its name; run the sync once, or use --syncer lag:SECONDS",
        )
    if len(marks) > 1:
        raise CheckFailed(
            [f"there are several syncs {name} from this source: {', '.join(marks)}"],
            cure="name one of them: --syncer sync:NAME",
        )
    return marks[0]


def _statements() -> dict[str, LiteralString]:
    return dict(load("trueup.capture.log", "syncer.sql"))


def _number(connection: Connection, statement: LiteralString, **values: str | int) -> int:
    row = connection.execute(statement, values).fetchone()
    return int(row[0]) if row and row[0] is not None else 0


def _subscribed(target: Connection, statement: LiteralString, oid: int, name: str) -> int:
    """Return the position of a subscription; raise SubscriptionDropped if it is gone, also if it was created again."""
    row = target.execute(statement, {"oid": oid}).fetchone()
    if row is None:
        raise SubscriptionDropped(
            [f"subscription {name} was dropped on the target: nothing applies the changes"],
            cure="create the subscription again and start the validation again, or name another syncer with --syncer",
        )
    return int(row[0])


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < _MAX_LAG:
        raise ConfigError(f"lag:{text} is not a number of seconds", cure="write it as lag:10")
    return seconds
