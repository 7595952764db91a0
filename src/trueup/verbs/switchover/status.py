"""Where a switchover is: what both pointers say, who holds which lock, what waits, and how long the phases took."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from psycopg import sql

from trueup.db.locks import APPLICATION, FAMILY, SWITCHOVER, SYNC
from trueup.db.node import connect
from trueup.db.statements import load
from trueup.verbs.switchover import pointer
from trueup.verbs.switchover.fence import APPLICATION_NAME
from trueup.verbs.switchover.phases import PAUSE
from trueup.verbs.switchover.pointer import IN_PROGRESS, Pointer
from trueup.verbs.sync.model import LOG_SCHEMA

if TYPE_CHECKING:
    from trueup.config.model import Node
    from trueup.verbs.switchover.outcome import Asked

_LOCKS = {APPLICATION: "applications", SWITCHOVER: "switchover", SYNC: "sync"}


@dataclass(frozen=True)
class Held:
    """One of our locks: who has it or waits for it."""

    lock: str
    exclusive: bool
    granted: bool
    pid: int | None
    role: str
    application: str
    seconds: float | None

    def __str__(self) -> str:
        who = f"process {self.pid} ({', '.join(part for part in (self.role, self.application) if part)})"
        how = ("holds" if self.granted else "waits for") + f" the lock of {self.lock}"
        since = "" if self.seconds is None else f", in a transaction for {self.seconds:.1f} s"
        return f"{who if self.pid else 'a prepared transaction'} {how}{' alone' if self.exclusive else ''}{since}"


@dataclass(frozen=True)
class SideStatus:
    """One of the two databases."""

    node: str
    pointer: Pointer | None
    locks: tuple[Held, ...]
    # What waits in its change log: entries, keys, seconds of the oldest; None where there is no log.
    waiting: tuple[int, int, float] | None


@dataclass(frozen=True)
class SwitchStatus:
    """Both of them, and what follows from that."""

    sync: str
    first: SideStatus
    second: SideStatus

    @property
    def in_use(self) -> str:
        """The name of the database in use; empty where neither is open."""
        sides = [side for side in (self.first, self.second) if side.pointer is not None and side.pointer.is_in_use]
        if not sides and self.first.pointer is None:
            return self.first.node
        return sides[0].node if sides else ""

    @property
    def phase(self) -> str:
        """Where it is, in a word or two."""
        running = [
            held.application.partition(": ")[2]
            for side in (self.first, self.second)
            for held in side.locks
            if held.lock == "switchover" and held.granted
        ]
        if self.first.pointer is None and self.second.pointer is None:
            return "not prepared"
        if running:
            return running[0] if running[0] in PAUSE else "preparing"
        if not self.in_use:
            return "decided, not open: run the same command again"
        begun = [s for s in (self.first, self.second) if s.pointer is not None and s.pointer.state == IN_PROGRESS]
        if begun:
            return "an attempt died before its decision: run it again, or abort"
        return "moved" if self.in_use == self.second.node else "not moved"

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "sync": self.sync,
            "in_use": self.in_use,
            "phase": self.phase,
            "sides": [
                {
                    "node": side.node,
                    "pointer": side.pointer.as_json() if side.pointer else None,
                    "report": side.pointer.report if side.pointer else None,
                    "locks": [asdict(held) for held in side.locks],
                    "waiting": None
                    if side.waiting is None
                    else dict(zip(("entries", "keys", "lag_seconds"), side.waiting, strict=True)),
                }
                for side in (self.first, self.second)
            ],
        }


def status(asked: Asked) -> SwitchStatus:
    """Ask both databases; nothing is written."""
    return SwitchStatus(asked.sync, _side(asked.first, asked.sync), _side(asked.second, asked.sync))


def _side(node: Node, sync: str) -> SideStatus:
    with ExitStack() as stack:
        connection: Any = stack.enter_context(connect(node, application=f"{APPLICATION_NAME} status"))
        rows = connection.execute(load("trueup.verbs.switchover", "status.sql")["locks"], {"family": FAMILY}).fetchall()
        locks = tuple(Held(_LOCKS.get(row[0], str(row[0])), *row[1:]) for row in rows)
        log = sql.Identifier(LOG_SCHEMA, f"pods_{sync}")
        waiting = None
        if connection.execute("SELECT to_regclass(%s)", [log.as_string(connection)]).fetchone()[0]:
            query = sql.SQL(load("trueup.verbs.sync", "round.sql")["waiting"]).format(log=log)
            waiting = connection.execute(query).fetchone()
        return SideStatus(node.name, pointer.read(connection, sync), locks, waiting)


def status_text(status: SwitchStatus) -> str:
    """For people: a line of what matters, then each side."""
    lines = [f"{status.sync}: {status.in_use or 'neither'} is in use ({status.phase})"]
    for side in (status.first, status.second):
        found = side.pointer
        said = "no pointer" if found is None else f"{found.state}{f', {found.phase}' if found.phase else ''}"
        lines.append(f"  {side.node}: {said}")
        if side.waiting is not None and (found is None or found.is_in_use):
            entries, keys, lag = side.waiting
            lines.append(f"    change log: {keys:,} keys in {entries:,} entries wait, the oldest for {lag:.1f} s")
        lines += [f"    {held}" for held in side.locks if held.lock != "applications" or held.exclusive]
        sharing = sum(1 for held in side.locks if held.lock == "applications" and not held.exclusive)
        if sharing:
            lines.append(f"    {sharing} transactions of applications hold the shared lock, or wait for it")
    report = next((s.pointer.report for s in (status.first, status.second) if s.pointer and s.pointer.report), None)
    if report:
        phases = ", ".join(f"{name} {ms:,.1f} ms" for name, ms in report.get("phases_ms", {}).items() if name in PAUSE)
        lines.append(
            f"  last: {report['action']} from {report['from']} to {report['to']}, {report['pause_ms']:,.0f} ms"
        )
        lines += [f"    {phases}"] if phases else []
    return "\n".join(lines)
