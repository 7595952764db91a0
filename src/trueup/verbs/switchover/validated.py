"""`--proof validated`: a validation that runs beside the sync has looked at every row, and says so up to a marker.

By induction, as with `keys`: since the database that is to be opened takes no writes but the sync's, a sweep has looked
at all its rows, and each change since was validated. What is left for the pause is the last changes, up to a marker
that is written when nobody writes any more. A validation that leaves anything out is refused before the pause.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from trueup.capture.log.slot import lsn_number, lsn_text
from trueup.db.connection import one_value
from trueup.db.node import connect, error_from_server
from trueup.db.statements import load
from trueup.errors import CheckFailed, TrueupError
from trueup.verbs.switchover import gate
from trueup.verbs.switchover.phases import FINAL_ROUND, GATE, Budget, spent
from trueup.verbs.sync import marks
from trueup.verbs.validate import findings
from trueup.verbs.validate.fence import Fence, wait_for, write_marker
from trueup.verbs.validate.meta import Meta, Stored
from trueup.verbs.validate.pending import key_values
from trueup.verbs.validate.status import Status, read_status
from trueup.verbs.validate.syncer import find_syncer

if TYPE_CHECKING:
    from trueup.config.model import Node
    from trueup.verbs.switchover.outcome import Asked
    from trueup.verbs.sync.link import Link
    from trueup.verbs.sync.model import Round

_APPLICATION = "trueup switchover proof"
_CURE = "see trueup validate status; or use --proof keys, which needs no validation"
# Inside of the pause every look counts; and the server ends the pause itself when the budget is spent.
_EVERY = 0.02
_MARGIN = 0.05
_PAUSE_BETWEEN = 0.1
_SHOWN = 3
_WATCHED = 100
# What makes a validation compare less than the rows as they are.
_PARTIAL = {
    "filters": "--filter",
    "excludes": "--exclude",
    "renames": "--rename",
    "constants": "--constant",
    "float_tolerance": "--float-tolerance",
    "cutover": "--cutover",
}


class Validated:
    """The validation that speaks for a switchover, with the sessions to ask it and to write the marker."""

    def __init__(self, meta: Meta, name: str, link: Link, writer: Any) -> None:
        self.meta = meta
        self.name = name
        self._link = link
        self._writer = writer
        self._tables = [str(table) for table in link.tables]
        self._marker = 0

    # ---- before the pause

    def refuse_unfit(self) -> None:
        """Refuse a validation that cannot speak for all rows of this sync, and name all that is in the way."""
        stored, status = self._read()
        wrong = self._unfit(stored, status) or [*_elsewhere(self._link, self.name), *self._not_this_sync(stored)]
        if wrong:
            raise CheckFailed([f"the validation {self.name}: {each}" for each in wrong], cure=_CURE)

    def wait_for_sweeps(self, since: datetime, *, patience: float, carry: Callable[[], object]) -> None:
        """Every table was swept as a whole since nobody else writes to it; where sweeps go on, they are waited for."""
        until = time.monotonic() + patience
        while missing := self._unswept(since):
            stored, status = self._read()
            if not stored.settings.sweep or status.state != "running" or time.monotonic() > until:
                raise CheckFailed(
                    [
                        f"the validation {self.name}: no sweep has gone through all of {table} since"
                        f" {self._link.target_node.name} refuses writes of others ({since:%Y-%m-%d %H:%M:%S%z})"
                        for table in missing
                    ],
                    cure=f"trueup switchover prepare, then trueup validate update {self.name} --sweep 0.2, and try"
                    " again when it has gone through; or use --proof keys",
                )
            carry()
            time.sleep(_PAUSE_BETWEEN)

    def come_close(self, *, patience: float, carry: Callable[[], object]) -> None:
        """A marker that is validated before the pause: so there is no backlog to wait for inside of it."""
        position = self._mark(0)
        # A row that changes all the time is proven when the target shows it: rounds go on meanwhile.
        found = wait_for(self.meta, self.name, position, timeout=patience, told=lambda status: carry())
        gate.refuse([gate.condition(gate.ROWS, self._wrong(found))])

    # ---- inside of the pause

    def mark(self, budget: Budget) -> None:
        """Write the marker: nobody writes any more, so all changes are before it."""
        self._marker = self._mark(budget.milliseconds(FINAL_ROUND))

    def unequal(self, final: Round, budget: Budget) -> tuple[list[str], str]:
        """What is in the way of "rows equal", and what was seen where nothing is."""
        if not self._marker or lsn_number(final.position) < self._marker:
            return [f"the last round began at {final.position}, before the marker {lsn_text(self._marker)}"], ""
        with self._within(budget):
            self.meta.connection.execute(f"SET statement_timeout = {budget.milliseconds(GATE)}")
            look = self._lookout()
            self._pass_all()
            while True:
                left = budget.left - _MARGIN
                found = wait_for(self.meta, self.name, self._marker, timeout=left, every=_EVERY, told=look)
                stored, status = self._read()
                if found.exit_code == 2 or found.errors or not status.total("pending"):
                    break
                # What a sweep suspects lies behind the marker; nobody writes, so it is decided soon.
                if budget.left <= _MARGIN:
                    raise spent(budget.seconds, GATE, f"{status.total('pending'):,} rows are not proven yet")
                look(status)
                time.sleep(_EVERY)
        if not found.validated and budget.left <= 2 * _MARGIN:
            raise spent(budget.seconds, GATE, "; ".join(found.reasons))
        # Settings can be changed while it runs: they are looked at again.
        return [*self._wrong(found), *self._unfit(stored, status)], self._told(status)

    def _lookout(self) -> Callable[[Status], None]:
        """Refuses a row that two looks inside of the gate found to differ: nothing is on its way to it any more.

        The first of the two may have begun before the last round was applied, the second one cannot. The validation
        itself would wait for longer before it calls that an error.
        """
        seen: dict[tuple[str, str], int] = {}

        def look(status: Status) -> None:
            self._pass_all()
            if not status.total("failed"):
                return
            wrong = []
            for row in self.meta.rows("oldest", name=self.name, most=_WATCHED):
                place = (row["source"], row["key"])
                if row["checks"] >= seen.setdefault(place, row["checks"]) + 2:
                    wrong.append(
                        f"{row['source']} ({', '.join(key_values(row['key']))}) differs, as {self.name} sees it"
                    )
            gate.refuse([gate.condition(gate.ROWS, wrong)])

        return look

    def _pass_all(self) -> None:
        """Let the sync's mark stand at the present: nobody writes, and the last round has carried all there was.

        A look that came before that round was applied is repeated only when the sync has passed its moment, which lies
        behind the position that the round began with.
        """
        (now,) = self._writer.execute("SELECT pg_current_wal_lsn()").fetchone()
        self._link.target.execute(marks.block("pass_all"), {"sync": self._link.name, "position": now})

    @contextmanager
    def _within(self, budget: Budget) -> Iterator[None]:
        try:
            yield
        except TrueupError:
            if budget.left <= 0:
                raise spent(budget.seconds, GATE) from None
            raise

    # ---- what is asked

    def _read(self) -> tuple[Stored, Status]:
        return self.meta.need(self.name), read_status(self.meta, self.name)

    def _mark(self, milliseconds: int) -> int:
        try:
            self._writer.execute(f"SET statement_timeout = {milliseconds}")
            return write_marker(self._writer)
        except Exception as error:
            raise error_from_server(error, self._link.source_node) from None

    def _unfit(self, stored: Stored, status: Status) -> list[str]:
        """Why it does not speak for all rows of all tables."""
        wrong = []
        if status.state != "running" or stored.wanted == "stop":
            wrong.append(f"it is stopped ({status.reason or 'asked to stop'}); start it: trueup validate start")
        if stored.settings.mode != "full":
            wrong.append(f"it does not compare rows: its mode is {stored.settings.mode}")
        wrong += [f"it does not compare all of the rows: it has {option}" for option in _partial(stored)]
        known = {table.source: table for table in status.tables}
        for name in self._tables:
            table = known.get(name)
            if table is None:
                wrong.append(f"it does not cover {name}")
            elif table.target != name:
                wrong.append(f"it compares {name} with {table.target}")
            elif table.stage != "running":
                wrong.append(f"{name} is not validated: {table.reason or table.stage}")
            else:
                wrong += [f"{name}: {remark}" for remark in table.remarks]
        return wrong

    def _not_this_sync(self, stored: Stored) -> list[str]:
        """It must judge what this sync has applied, and nothing later."""
        wish, mine = stored.settings.syncer, f"sync:{self._link.name}"
        if not wish:
            tables = [table.name for table in self._link.tables]
            try:
                found = find_syncer(self._link.source, self._link.target, "", tables)
            except CheckFailed as error:
                return [str(error)]
            wish = f"{found.kind}:{','.join(found.names)}"
        return [] if wish == mine else [f"it follows {wish}, not the sync {self._link.name} (--syncer {mine})"]

    def _unswept(self, since: datetime) -> list[str]:
        swept = {row["source"]: row["swept_at"] for row in self.meta.rows("tables", name=self.name)}
        return [name for name in self._tables if swept.get(name) is None or swept[name] <= since]

    def _wrong(self, found: Fence) -> list[str]:
        wrong = list(found.reasons)
        if found.errors:
            rows = findings.listed(self.meta, self.name, most=_SHOWN)
            shown = ", ".join(f"{row.source} ({', '.join(row.key)}) {row.kind}" for row in rows)
            wrong.append(f"{found.errors:,} errors of the validation {self.name} are open: {shown}")
        return wrong

    def _told(self, status: Status) -> str:
        told = f"{len(self._tables)} tables, validated by {self.name} up to {lsn_text(self._marker)}"
        ignored = sum(table.errors.get("ignored", 0) for table in status.tables)
        by_hand = int(self.meta.rows("by_hand", "pending.sql", name=self.name)[0]["count"])
        told += f"; {ignored:,} errors are ignored" if ignored else ""
        return told + (f"; {by_hand:,} errors were resolved by hand" if by_hand else "")


@contextmanager
def find(asked: Asked, link: Link) -> Iterator[Validated]:
    """The validation that was named, or the only one that goes from the one node of the link to the other."""
    source, target = link.source_node, link.target_node
    nodes = (asked.meta,) if asked.meta else (target, source)
    found = [(node, each) for node in nodes for each in _known(node) if asked.validation in ("", each.name)]
    between = [(node, each) for node, each in found if _ends(each) == (source.name, target.name)]
    way = f"from {source.name} to {target.name}"
    if not between:
        named_ones = [
            f"the validation {each.name} goes from {' to '.join(_ends(each))}, not {way}" for _, each in found
        ]
        places = " or ".join(node.name for node in nodes)
        which = f"validation {asked.validation}" if asked.validation else "validation"
        raise CheckFailed(
            named_ones or [f"there is no {which} {way} on {places}"],
            cure="start one with trueup validate start --sweep 0.2, or say where it is kept: --meta NODE",
        )
    if len(between) > 1:
        names = ", ".join(f"{each.name} (on {node.name})" for node, each in between)
        raise CheckFailed([f"there are several validations {way}: {names}"], cure="choose one: --validation, --meta")
    node, chosen = between[0]
    meta = Meta(node, application=_APPLICATION, read_only=True)
    try:
        with connect(source, application=_APPLICATION, read_only=False) as writer:
            yield Validated(meta, chosen.name, link, writer)
    finally:
        meta.close()


def _known(node: Node) -> Sequence[Stored]:
    meta = Meta(node, application=_APPLICATION, read_only=True)
    try:
        return [meta.need(row["name"]) for row in meta.rows("names")] if meta.exists() else []
    finally:
        meta.close()


def _ends(stored: Stored) -> tuple[str, str]:
    return stored.settings.source, stored.settings.target


def _partial(stored: Stored) -> list[str]:
    return [option for name, option in _PARTIAL.items() if getattr(stored.settings, name)]


def _elsewhere(link: Link, name: str) -> list[str]:
    """Nodes are names: another configuration may mean other databases. A process that is at work is seen in these."""
    query = load("trueup.verbs.switchover", "gate.sql")["sessions"]
    ends = ((link.source_node, link.source), (link.target_node, link.target))
    return [
        f"its process has no session with the database {node.name}: it works on another one, or waits"
        for node, connection in ends
        if not one_value(connection.execute(query, {"application": f"trueup validate {name}"}))
    ]
