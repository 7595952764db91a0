"""The status of a switchover: both pointers, the locks and their holders, the change logs, the last report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from trueup.config.model import Node
from trueup.config.wording import counted
from trueup.db.connection import one_value
from trueup.db.lock_holders import describe_session
from trueup.db.node import connect
from trueup.db.statements import load
from trueup.db.trust import check_schema
from trueup.verbs.switchover import pointer
from trueup.verbs.switchover.fence import APPLICATION_NAME
from trueup.verbs.switchover.phases import PAUSE
from trueup.verbs.switchover.pointer import IN_PROGRESS, Pointer
from trueup.verbs.switchover.request import SwitchoverRequest
from trueup.verbs.sync.model import LOG_SCHEMA
from trueup.verbs.sync.status import waiting


@dataclass(frozen=True)
class Held:
    """A session that holds one of trueup's locks, or waits for it."""

    lock: str
    exclusive: bool
    granted: bool
    pid: int | None
    role: str
    application: str
    seconds: float | None

    def __str__(self) -> str:
        session = "a prepared transaction"
        if self.pid is not None:
            session = describe_session(self.pid, self.role, self.application, self.seconds)
        verb = "holds" if self.granted else "waits for"
        return f"{session} {verb} the {'exclusive' if self.exclusive else 'shared'} lock of {self.lock}"


@dataclass(frozen=True)
class SideStatus:
    """One of the two databases."""

    node: str
    pointer: Pointer | None
    locks: tuple[Held, ...]
    # What is in its change log: entries, keys, age of the oldest entry in seconds; None: there is no change log.
    waiting: tuple[int, int, float] | None


@dataclass(frozen=True)
class SwitchStatus:
    """Both databases, and what follows from that."""

    sync: str
    first: SideStatus
    second: SideStatus

    @property
    def in_use(self) -> str:
        """The name of the database in use; empty if neither is open, both names if both are."""
        sides = [side for side in (self.first, self.second) if side.pointer is not None and side.pointer.is_in_use]
        if not sides and self.first.pointer is None:
            return self.first.node
        return self.first.node + " and " + self.second.node if self.is_split else sides[0].node if sides else ""

    @property
    def is_split(self) -> bool:
        """Whether both databases accept writes: one of them went back behind the decision, or was changed by hand."""
        first, second = self.first.pointer, self.second.pointer
        return second is not None and second.is_in_use and (first is None or first.is_in_use)

    @property
    def phase(self) -> str:
        """The current phase."""
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
        if self.is_split:
            return "both accept writes: a failover or a restore took back a decision; close one of them"
        if not self.in_use:
            return "decided, not open: run the same command again"
        begun = [s for s in (self.first, self.second) if s.pointer is not None and s.pointer.state == IN_PROGRESS]
        if begun:
            return "an attempt died before its decision: run it again, or abort"
        return "moved" if self.in_use == self.second.node else "not moved"

    def as_json(self) -> dict[str, Any]:
        """Return the status as plain values."""
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


def status(request: SwitchoverRequest) -> SwitchStatus:
    """Return the status of both databases; write nothing."""
    return SwitchStatus(request.sync, _side(request.first, request.sync), _side(request.second, request.sync))


def _side(node: Node, sync: str) -> SideStatus:
    with connect(node, application=f"{APPLICATION_NAME} status") as connection:
        statements = load("trueup.verbs.switchover", "status.sql")
        rows = connection.execute(statements["locks"]).fetchall()
        if pointer.is_installed(connection):
            rows += connection.execute(statements["running"], {"sync": sync}).fetchall()
        if check_schema(connection, LOG_SCHEMA) and one_value(connection.execute(statements["has_log"])):
            rows += connection.execute(statements["sync"], {"sync": sync}).fetchall()
        locks = tuple(Held(*row) for row in rows)
        return SideStatus(node.name, pointer.read(connection, sync), locks, waiting(connection, sync))


def status_text(status: SwitchStatus) -> str:
    """Return the status as text."""
    verb = "are" if status.is_split else "is"
    lines = [f"{status.sync}: {status.in_use or 'neither'} {verb} in use ({status.phase})"]
    for side in (status.first, status.second):
        stored = side.pointer
        text = "no pointer" if stored is None else f"{stored.state}{f', {stored.phase}' if stored.phase else ''}"
        lines.append(f"  {side.node}: {text}")
        if side.waiting is not None and (stored is None or stored.is_in_use):
            entries, keys, lag = side.waiting
            lines.append(
                f"    change log: {counted(keys, 'key')} in {counted(entries, 'entry')}, the oldest {lag:.1f} s old"
            )
        lines += [f"    {held}" for held in side.locks if held.lock != "applications" or held.exclusive]
        shared = sum(1 for held in side.locks if held.lock == "applications" and not held.exclusive)
        if shared:
            lines.append(f"    {shared} transactions of applications hold the shared lock, or wait for it")
    report = next((s.pointer.report for s in (status.first, status.second) if s.pointer and s.pointer.report), None)
    if report:
        phases = ", ".join(f"{name} {ms:,.1f} ms" for name, ms in report.get("phases_ms", {}).items() if name in PAUSE)
        lines.append(
            f"  last: {report['action']} from {report['from']} to {report['to']}, {report['pause_ms']:,.0f} ms"
        )
        lines += [f"    {phases}"] if phases else []
    return "\n".join(lines)
