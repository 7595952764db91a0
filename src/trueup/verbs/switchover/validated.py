"""`--proof validated`: a running validation has compared every row, and every change up to a marker.

A proof by induction, as with `keys`: since only the sync can write to the new database, a scrub has compared all its
rows, and every later change was validated. Inside of the pause only the last changes are left, up to a marker that is
written when there are no writers. A validation that compares less is refused before the pause.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

from trueup.capture.log.slot import lsn_number, lsn_text
from trueup.capture.log.syncer import find_syncer
from trueup.config.model import Node
from trueup.config.wording import counted
from trueup.db.connection import Connection, one_value
from trueup.db.node import connect, error_from_server
from trueup.db.server_identity import server_position
from trueup.errors import CheckFailed, TrueupError
from trueup.verbs.switchover import gate
from trueup.verbs.switchover.phases import FINAL_ROUND, GATE, Budget, spent
from trueup.verbs.switchover.request import SwitchoverRequest
from trueup.verbs.sync import state
from trueup.verbs.sync.link import Link
from trueup.verbs.sync.model import Round, SyncTable
from trueup.verbs.validate import row_errors
from trueup.verbs.validate.fence import Fence, wait_for, write_marker
from trueup.verbs.validate.history import SOURCE, TARGET, other_source
from trueup.verbs.validate.meta import Meta, Stored, open_meta
from trueup.verbs.validate.pending import key_values
from trueup.verbs.validate.status import Status, read_status

_APPLICATION = "trueup switchover proof"
_CURE = "see trueup validate status, or use --proof keys, which needs no validation"
# Seconds between two queries of the validation's state inside of the pause, and before it.
_EVERY = 0.02
_EVERY_BEFORE = 0.1
# Seconds to keep of the budget, because the server ends the pause when the budget is spent.
_MARGIN = 0.05
_SHOWN = 3
_WATCHED = 100
# Settings with which a validation compares less than whole rows.
_PARTIAL = {
    "filters": "a filter",
    "excludes": "excluded columns",
    "renames": "renamed columns",
    "constants": "constant columns",
    "float_tolerance": "a tolerance for floats",
    "cutover": "a cut-over position",
}


class TableLocked(Exception):
    """A session waits for a lock on a table, so the validation cannot read it inside of the pause."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("a session waits for a lock")
        # Open errors of the validation, and why it does not cover all rows.
        self.problems = list(problems)


class Validated:
    """The validation that proves the rows of a switchover, with sessions to query it and to write the marker."""

    def __init__(self, meta: Meta, name: str, link: Link, writer: Connection) -> None:
        self.meta = meta
        self.name = name
        self._link = link
        self._writer = writer
        self._tables = [str(table) for table in link.tables if not table.spec.is_keyless]
        # Compared by digests inside of the pause.
        self._keyless = [str(table) for table in link.tables if table.spec.is_keyless]
        self._marker = 0

    @property
    def sessions(self) -> tuple[Connection, ...]:
        """The sessions that are used inside of the pause."""
        return (self.meta.connection, self._writer)

    # ---- before the pause

    def check_suitable(self) -> None:
        """Raise if the validation cannot prove all rows of this sync, with all reasons."""
        stored, status = self._read()
        other = other_source(stored, server_position(self._writer))
        problems = [other] if other else self._problems(stored, status)
        problems = problems or [*_elsewhere(self._link, stored), *self._not_this_sync(stored)]
        if problems:
            raise CheckFailed([f"the validation {self.name}: {problem}" for problem in problems], cure=_CURE)

    def wait_for_scrubs(self, since: datetime, *, timeout: float, run_round: Callable[[], object]) -> None:
        """Wait until every table was scrubbed after `since`; raise if scrubs are off, or after `timeout` seconds."""
        until = time.monotonic() + timeout
        # Scrubs have the time of the meta database; the clocks of two servers differ.
        now: datetime = one_value(self._link.target.execute("SELECT clock_timestamp()"))
        scrubbed_since = since + (self.meta.value("clock") - now)
        if self._unscrubbed(scrubbed_since):
            with open_meta(self.meta.node) as writer:
                writer.rows("want_scrub", name=self.name, since=scrubbed_since)
        while missing := self._unscrubbed(scrubbed_since):
            stored, status = self._read()
            if not stored.settings.scrub_share or status.state != "running" or time.monotonic() > until:
                raise CheckFailed(
                    [
                        f"the validation {self.name}: {table} was not scrubbed completely since only the sync can write"
                        f" to {self._link.target_node.name} ({since:%Y-%m-%d %H:%M:%S%z})"
                        for table in missing
                    ],
                    cure=f"run trueup switchover prepare and trueup validate update {self.name} --scrub-share 0.2,"
                    " and try again when the scrub is complete; or use --proof keys",
                )
            run_round()
            time.sleep(_EVERY_BEFORE)

    def catch_up(self, *, timeout: float, run_round: Callable[[], object]) -> None:
        """Wait for a marker before the pause, so that the pause need not wait for a backlog."""
        position = self._new_marker(0)
        # A row that changes all the time is validated when the target has its change: rounds continue meanwhile.
        fence = wait_for(
            self.meta, self.name, position, timeout=timeout, apart=self._keyless, on_wait=lambda status: run_round()
        )
        gate.refuse([gate.condition(gate.ROWS, self._open_errors(fence))])

    # ---- inside of the pause

    def write_marker(self, budget: Budget) -> None:
        """Write the marker; there are no writers, so all changes are before it."""
        self._marker = self._new_marker(budget.milliseconds(FINAL_ROUND))

    def unequal(self, final: Round, budget: Budget, is_locked: Callable[[], bool]) -> tuple[list[str], str]:
        """Return the problems of the condition "rows equal", and what was checked.

        Raise TableLocked if `is_locked` returns True while the validation is not complete.
        """
        if not self._marker or lsn_number(final.position) < self._marker:
            return [f"the final round began at {final.position}, before the marker {lsn_text(self._marker)}"], ""
        with self._within(budget):
            self.meta.connection.execute(f"SET statement_timeout = {budget.milliseconds(GATE)}")
            check = self._failure_check(is_locked)
            self._advance_position()
            while True:
                left = budget.left - _MARGIN
                fence = wait_for(
                    self.meta, self.name, self._marker, timeout=left, every=_EVERY, apart=self._keyless, on_wait=check
                )
                stored, status = self._read()
                if fence.exit_code == 2 or fence.errors or not status.total("pending"):
                    break
                # Rows that a scrub suspects may be after the marker; without writers they are decided soon.
                if budget.left <= _MARGIN:
                    raise spent(budget.seconds, GATE, f"{status.total('pending'):,} rows are not validated yet")
                check(status)
                time.sleep(_EVERY)
        if not fence.validated and budget.left <= 2 * _MARGIN:
            raise spent(budget.seconds, GATE, "; ".join(fence.reasons))
        # What was pending when the fence was read may be an error now.
        reasons = tuple(dict.fromkeys((*fence.reasons, *status.blind_spots)))
        fence = replace(fence, errors=status.open_errors, reasons=reasons)
        # Settings can be changed while a validation runs: they are checked again.
        return [*self._open_errors(fence), *self._problems(stored, status)], self._checked(status)

    def _failure_check(self, is_locked: Callable[[], bool]) -> Callable[[Status], None]:
        """Return a function that raises if two checks inside of the gate found that a row differs.

        The first check may have begun before the final round was applied, the second one cannot. The validation itself
        waits for longer before it reports an error.
        """
        first_checks: dict[tuple[str, str], int] = {}

        def check(status: Status) -> None:
            self._advance_position()
            if is_locked():
                errors = Fence(self.name, "", False, 0.0, status.open_errors, tuple(status.blind_spots))
                raise TableLocked([*self._open_errors(errors), *self._problems(self._read()[0], status)])
            if not status.total("failed"):
                return
            differing = []
            for row in self.meta.rows("oldest", name=self.name, limit=_WATCHED):
                checks = first_checks.setdefault((row["source"], row["key"]), row["checks"])
                if row["checks"] >= checks + 2:
                    key = ", ".join(key_values(row["key"]))
                    differing.append(f"{row['source']} ({key}) differs according to the validation {self.name}")
            gate.refuse([gate.condition(gate.ROWS, differing)])

        return check

    def _advance_position(self) -> None:
        """Set the position of the sync to the current one: there are no writers, and all changes are applied.

        A check that began before the final round was applied is repeated only when the sync has passed the position of
        that check, which is after the position at which the round began.
        """
        now = one_value(self._writer.execute("SELECT pg_current_wal_lsn()"))
        values = {"sync": self._link.name, "position": now}
        self._link.target.execute(state.statement("advance_position"), values)

    @contextmanager
    def _within(self, budget: Budget) -> Iterator[None]:
        try:
            yield
        except TrueupError:
            if budget.left <= 0:
                raise spent(budget.seconds, GATE) from None
            raise

    # ---- queries

    def _read(self) -> tuple[Stored, Status]:
        """Return the validation and its status, without tables that no validation covers: digests compare them."""
        status = read_status(self.meta, self.name)
        tables = tuple(table for table in status.tables if table.source not in self._keyless)
        return self.meta.need(self.name), replace(status, tables=tables)

    def _new_marker(self, milliseconds: int) -> int:
        try:
            self._writer.execute(f"SET statement_timeout = {milliseconds}")
            return write_marker(self._writer)
        except Exception as error:
            raise error_from_server(error, self._link.source_node) from None

    def _problems(self, stored: Stored, status: Status) -> list[str]:
        """Return why the validation does not cover all rows of all tables."""
        problems = []
        if status.state != "running" or stored.wanted == "stop":
            problems.append(f"it is stopped ({status.reason or 'stop requested'}); start it: trueup validate start")
        if stored.settings.mode != "full":
            problems.append(f"it does not compare rows: its mode is {stored.settings.mode}")
        problems += [f"it does not compare all rows as they are: it has {part}" for part in _partial(stored)]
        known = {table.source: table for table in status.tables}
        for name in self._tables:
            table = known.get(name)
            if table is None:
                problems.append(f"it does not cover {name}")
            elif table.target != name:
                problems.append(f"it compares {name} with {table.target}")
            elif table.stage != "running":
                problems.append(f"{name} is not validated: {table.reason or table.stage}")
            else:
                problems += [f"{name}: {remark}" for remark in table.remarks]
        return problems

    def _not_this_sync(self, stored: Stored) -> list[str]:
        """Return why the validation does not follow this sync."""
        syncer, expected = stored.settings.syncer, f"sync:{self._link.name}"
        if not syncer or syncer.startswith("sync:"):
            tables = [table.name for table in self._link.tables]
            try:
                detected = find_syncer(self._link.source, self._link.target, syncer, tables)
            except CheckFailed as error:
                return [str(error)]
            syncer = f"{detected.kind}:{','.join(detected.names)}"
        if syncer == expected:
            return []
        return [f"it follows {syncer}, not the sync {self._link.name} (--syncer {expected})"]

    def _unscrubbed(self, since: datetime) -> list[str]:
        scrubbed = {row["source"]: row["scrubbed_at"] for row in self.meta.rows("tables", name=self.name)}
        return [name for name in self._tables if scrubbed.get(name) is None or scrubbed[name] <= since]

    def _open_errors(self, fence: Fence) -> list[str]:
        problems = list(fence.reasons)
        if fence.errors:
            rows = row_errors.list_errors(self.meta, self.name, limit=_SHOWN)
            shown = ", ".join(f"{row.source} ({', '.join(row.key)}) {row.kind}" for row in rows)
            problems.append(f"the validation {self.name} has {counted(fence.errors, 'open error')}: {shown}")
        return problems

    def _checked(self, status: Status) -> str:
        text = f"{counted(len(self._tables), 'table')}, validated by {self.name} up to {lsn_text(self._marker)}"
        ignored = sum(table.errors.get("ignored", 0) for table in status.tables)
        by_hand = int(self.meta.rows("by_hand", "pending.sql", name=self.name)[0]["count"])
        text += f"; {ignored:,} errors are ignored" if ignored else ""
        return text + (f"; {by_hand:,} errors were resolved by hand" if by_hand else "")


def digested_tables(tables: Iterable[SyncTable]) -> list[SyncTable]:
    """Return the tables that are also compared by digests inside of the pause.

    A TRUNCATE of one partition is not in the log of the partitioned table, so no validation sees it. And no validation
    covers a table without a key.
    """
    return [table for table in tables if table.is_partitioned or table.spec.is_keyless]


@contextmanager
def find(request: SwitchoverRequest, link: Link) -> Iterator[Validated]:
    """Open the validation that the request names, or the only one from the source of the link to its target."""
    source, target = link.source_node, link.target_node
    nodes = (request.meta,) if request.meta else (target, source)
    known = [(node, one) for node in nodes for one in _stored(node) if request.validation in ("", one.name)]
    fitting = [(node, one) for node, one in known if _ends(one) == (source.name, target.name)]
    direction = f"from {source.name} to {target.name}"
    if not fitting:
        others = [f"the validation {one.name} is from {' to '.join(_ends(one))}, not {direction}" for _, one in known]
        places = " or ".join(node.name for node in nodes)
        which = f"validation {request.validation}" if request.validation else "validation"
        raise CheckFailed(
            others or [f"there is no {which} {direction} on {places}"],
            cure="start one with trueup validate start --scrub-share 0.2, or name the node that keeps it: --meta NODE",
        )
    if len(fitting) > 1:
        names = ", ".join(f"{one.name} (on {node.name})" for node, one in fitting)
        cure = "choose one: --validation, --meta"
        raise CheckFailed([f"there are several validations {direction}: {names}"], cure=cure)
    node, chosen = fitting[0]
    meta = Meta(node, application=_APPLICATION, read_only=True)
    try:
        with connect(source, application=_APPLICATION, read_only=False) as writer:
            yield Validated(meta, chosen.name, link, writer)
    finally:
        meta.close()


def _stored(node: Node) -> Sequence[Stored]:
    meta = Meta(node, application=_APPLICATION, read_only=True)
    try:
        return [meta.need(row["name"]) for row in meta.rows("names")] if meta.exists() else []
    finally:
        meta.close()


def _ends(stored: Stored) -> tuple[str, str]:
    return stored.settings.source, stored.settings.target


def _partial(stored: Stored) -> list[str]:
    return [part for name, part in _PARTIAL.items() if getattr(stored.settings, name)]


def _elsewhere(link: Link, stored: Stored) -> list[str]:
    """Return the ends that are not what the validation compares: its configuration may name other databases."""
    ends = ((SOURCE, link.source_node, link.source), (TARGET, link.target_node, link.target))
    return [
        f"its {side} is another database than {node.name}, or it is not connected"
        for side, node, connection in ends
        if stored.servers.get(side, {}).get("system") != server_position(connection).system
    ]
