"""The status of a switchover: both pointers, the locks and their holders, the change logs, the last report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from trueup.config.model import Node
from trueup.config.visible import as_lines
from trueup.config.wording import counted
from trueup.db.connection import one_value
from trueup.db.lock_holders import describe_session
from trueup.db.names import display_name
from trueup.db.node import connect
from trueup.db.statements import load
from trueup.db.trust import check_schema
from trueup.engine.failures import environment_errors
from trueup.errors import NodeError
from trueup.verbs.switchover import guard, pointer
from trueup.verbs.switchover.fence import APPLICATION_NAME
from trueup.verbs.switchover.phases import PAUSE
from trueup.verbs.switchover.pointer import IN_PROGRESS, Pointer, undecided
from trueup.verbs.switchover.request import EXECUTE, ROLLBACK, SwitchoverRequest
from trueup.verbs.switchover.room import Room, room
from trueup.verbs.sync import state
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
    # Why it could not be read; "" if it was.
    problem: str = ""
    # The size of its change log.
    room: Room | None = None
    # Other switchovers after which its tables do not accept writes: their sync, and the node in use.
    closed_by: tuple[tuple[str, str], ...] = ()
    # Partitions and tables that were created in this database after it was closed, and whether they accept writes.
    added: tuple[tuple[str, bool], ...] = ()

    @property
    def is_in_use(self) -> bool:
        """Whether its pointer says that it is in use."""
        return self.pointer is not None and self.pointer.is_in_use


@dataclass(frozen=True)
class SwitchStatus:
    """Both databases, and what follows from that."""

    sync: str
    first: SideStatus
    second: SideStatus

    @property
    def sides(self) -> tuple[SideStatus, SideStatus]:
        """Both databases."""
        return self.first, self.second

    @property
    def in_use(self) -> str:
        """The name of the database in use; empty if neither is open, both names if both are."""
        if self.is_split:
            return f"{self.first.node} and {self.second.node}"
        for side, other in (self.sides, self.sides[::-1]):
            # Without a pointer a database has no guards. If it does not answer, the other one is the witness.
            if side.is_in_use or (side.pointer is None and other.pointer is not None and not other.is_in_use):
                return side.node
        return self.first.node if self.first.pointer is None and self.second.pointer is None else ""

    @property
    def closed_by(self) -> tuple[tuple[str, str], ...]:
        """The other switchovers that moved the applications away from the database in use: sync, and node in use."""
        return next((side.closed_by for side in self.sides if side.node == self.in_use), ())

    @property
    def is_split(self) -> bool:
        """Whether both databases accept writes: one of them went back behind the decision, or was changed by hand."""
        first, second = self.first, self.second
        return second.is_in_use and (first.is_in_use or (first.pointer is None and not first.problem))

    @property
    def phase(self) -> str:
        """The current phase."""
        pointers = [side.pointer for side in self.sides if side.pointer is not None]
        running = [
            held.application.partition(": ")[2]
            for side in self.sides
            for held in side.locks
            if held.lock == "switchover" and held.granted
        ]
        lost = next((side.node for side in self.sides if side.problem), "")
        if not pointers:
            return f"{lost} does not answer, and the other node has no pointer" if lost else "not prepared"
        if running:
            return running[0] if running[0] in PAUSE else "preparing"
        if self.is_split:
            if any(pointer.is_alone for pointer in pointers):
                return "both accept writes: a node came back after the switchover was finished without it: run finish"
            return "both accept writes: a failover or a restore took back a decision; close one of them"
        if lost and any(pointer.finished_at for pointer in pointers):
            return f"finished; {lost} does not answer"
        if lost:
            return f"{lost} does not answer: what is known is from the other node"
        if any(pointer.finished_at for pointer in pointers):
            return "finished"
        if not self.in_use:
            first, second = pointers if len(pointers) == 2 else (pointers[0], None)
            is_back = second is not None and undecided(first, second)
            action = ROLLBACK if is_back else EXECUTE
            opened = first if is_back else second
            if opened is not None and not opened.expects_token:
                return f"decided, but {opened.name} went back, and cannot be opened: see trueup switchover {action}"
            return f"decided, not open: run trueup switchover {action}"
        if len(pointers) < 2:
            return f"{self.in_use} has no pointer: it was finished without the other node, or restored; run finish"
        if any(pointer.state == IN_PROGRESS for pointer in pointers):
            return "an attempt died before its decision: run it again, or abort"
        return "moved" if self.in_use == self.second.node else "not moved"

    def as_json(self) -> dict[str, Any]:
        """Return the status as plain values."""
        return {
            "sync": self.sync,
            "in_use": self.in_use,
            "phase": self.phase,
            "closed_by": [{"sync": sync, "in_use": node} for sync, node in self.closed_by],
            "sides": [
                {
                    "node": side.node,
                    "problem": side.problem,
                    "pointer": side.pointer.as_json() if side.pointer else None,
                    "report": side.pointer.report if side.pointer else None,
                    "log_size": asdict(side.room) if side.room else None,
                    "locks": [asdict(held) for held in side.locks],
                    "added": [{"table": table, "accepts_writes": accepts} for table, accepts in side.added],
                    "waiting": None
                    if side.waiting is None
                    else dict(zip(("entries", "keys", "lag_seconds"), side.waiting, strict=True)),
                }
                for side in self.sides
            ],
        }


def status(request: SwitchoverRequest) -> SwitchStatus:
    """Return the status of both databases, or of the one that answers; write nothing."""
    request = request.identified(both=False)
    sides: list[SideStatus] = []
    errors: list[NodeError] = []
    for node in (request.first, request.second):
        try:
            sides.append(_side(node, request.sync))
        except NodeError as error:
            errors.append(error)
            sides.append(SideStatus(node.name, None, (), None, error.message))
    if len(errors) == len(sides):
        raise errors[0]
    return SwitchStatus(request.sync, *sides)


@environment_errors()
def _side(node: Node, sync: str) -> SideStatus:
    with connect(node, application=f"{APPLICATION_NAME} status") as connection:
        statements = load("trueup.verbs.switchover", "status.sql")
        rows = connection.execute(statements["locks"]).fetchall()
        closed_by: list[tuple[str, str]] = []
        added: list[tuple[str, bool]] = []
        if pointer.is_installed(connection):
            rows += connection.execute(statements["running"], {"sync": sync}).fetchall()
            closed_by = [
                (str(other), str(node)) for other, node in connection.execute(statements["closed_by"], {"sync": sync})
            ]
            known = state.read(connection, sync)
            names = {
                **{"sync": sync, "trigger": guard.trigger(sync), "rows": guard.row_trigger(sync)},
                "tables": [] if known is None else list(known.tables),
            }
            added = [
                (display_name(schema, table), bool(accepts))
                for schema, table, accepts in connection.execute(statements["added"], names).fetchall()
            ]
        if check_schema(connection, LOG_SCHEMA) and one_value(connection.execute(statements["has_log"])):
            rows += connection.execute(statements["sync"], {"sync": sync}).fetchall()
        locks = tuple(Held(*row) for row in rows)
        stored = pointer.read(connection, sync)
        return SideStatus(
            *(node.name, stored, locks, waiting(connection, sync)),
            room=room(connection, sync),
            closed_by=tuple(closed_by),
            added=tuple(added),
        )


def status_text(status: SwitchStatus) -> str:
    """Return the status as text."""
    verb = "are" if status.is_split else "is"
    lines = [f"{status.sync}: {status.in_use or 'neither'} {verb} in use ({status.phase})"]
    lines += [
        f"  tables of {status.in_use} do not accept writes: {node} is in use since the switchover of the sync {sync}"
        for sync, node in status.closed_by
    ]
    for side in status.sides:
        stored = side.pointer
        text = "no pointer" if stored is None else f"{stored.state}{f', {stored.phase}' if stored.phase else ''}"
        if side.problem:
            text = f"does not answer: {side.problem}"
        elif stored is not None and stored.is_closed:
            text = "closed to writes for good; to open it: trueup switchover finish --reopen-old"
        lines.append(f"  {side.node}: {text}")
        lines += [
            f"    {table} was created on {side.node} after it was closed{', and accepts writes' if accepts else ''}"
            for table, accepts in side.added
        ]
        if side.waiting is not None and (stored is None or stored.is_in_use):
            entries, keys, lag = side.waiting
            lines.append(
                f"    change log: {counted(keys, 'key')} in {counted(entries, 'entry')}, the oldest {lag:.1f} s old"
            )
            lines += [f"    size of the change log: {side.room}"] if side.room is not None else []
        lines += [f"    {held}" for held in side.locks if held.lock != "applications" or held.exclusive]
        shared = sum(1 for held in side.locks if held.lock == "applications" and not held.exclusive)
        if shared:
            lines.append(
                f"    {counted(shared, 'transaction')} of applications with the shared lock, or waiting for it"
            )
    report = next((s.pointer.report for s in (status.first, status.second) if s.pointer and s.pointer.report), None)
    if report:
        times = report.get("phases_ms", {})
        phases = ", ".join(f"{name} {times[name]:,.1f} ms" for name in PAUSE if name in times)
        lines.append(
            f"  last: {report['action']} from {report['from']} to {report['to']}, {report['pause_ms']:,.0f} ms"
        )
        lines += [f"    {phases}"] if phases else []
    return as_lines(lines)
