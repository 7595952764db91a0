"""The path of a sync: `start` (plan, change log, copy), then rounds until it is close, or as long as it is wanted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from psycopg import sql

from trueup.db import locks, reader
from trueup.db.foreign_keys import TableName
from trueup.engine.choose import EngineStarter
from trueup.errors import CheckFailed, NodeError, QueryError, TrueupError
from trueup.rows.write.ordered import write_ordered
from trueup.verbs.switchover import pointer
from trueup.verbs.sync import changelog, marks, sequences
from trueup.verbs.sync.large import large_round
from trueup.verbs.sync.link import Link, application, open_ends, open_link
from trueup.verbs.sync.model import ORDERED, Round
from trueup.verbs.sync.round import SMALL, Changes, done, finish, idle, is_small, mark, read_changes, small_round
from trueup.verbs.sync.start import SyncRequest, plan, start

if TYPE_CHECKING:
    from trueup.engine.progress import Progress
    from trueup.engine.work import Engine

__all__ = ["Runner", "SyncRequest", "drop", "plan", "run", "start", "status", "stop"]

# Keys that one large round takes; what is beyond waits for the next one.
LARGE = 1_000_000
RETRY_SECONDS = 2.0
TELL_SECONDS = 5.0
# A part of the log alone may not fit: unique, exclusion, foreign-key and restrict violations.
_DOES_NOT_FIT = ("23505", "23P01", "23503", "23001")
# Rows that are too long to be one value together: program limit exceeded, out of memory.
_TOO_LONG = ("54000", "53200")


@dataclass(frozen=True)
class Until:
    """When rounds end: after one, when the target is close, or when somebody says so."""

    once: bool = False
    follow: bool = False
    # Close: so few keys in a round, so fast, and nothing left.
    keys: int = 1_000
    seconds: float = 1.0
    # Between two looks when nothing waits.
    interval: float = 0.2
    # How often sequences are carried over while rounds go on.
    sequences: float = 10.0

    def is_reached(self, done: Round) -> bool:
        """Whether this was the last round."""
        if self.once:
            return True
        close = not done.pending and done.keys <= self.keys and done.milliseconds <= 1000 * self.seconds
        return close and not self.follow


@dataclass(frozen=True)
class Totals:
    """What the rounds of a run did together, and the last one of them."""

    rounds: int = 0
    keys: int = 0
    rows: int = 0
    seconds: float = 0.0
    last: Round = field(default_factory=Round)

    def and_then(self, done: Round) -> Totals:
        """One round more."""
        return replace(self, rounds=self.rounds + 1, keys=self.keys + done.keys, rows=self.rows + done.rows, last=done)


def run(request: SyncRequest, until: Until, progress: Progress, tell: Callable[[dict[str, Any]], object]) -> Totals:
    """Carry changes over, round after round; `tell` gets lag, pending keys and speed now and then."""
    totals = Totals()
    began = time.monotonic()
    while True:
        try:
            with open_link(request.source, request.target, request.name) as link:
                for now in _rounds(link, request, until, progress, totals, began):
                    totals = now
                    tell(facts(totals))
                    progress.say(told_text(totals))
            return totals
        except NodeError as error:
            if not until.follow:
                raise
            # A server that is started again, or fails over: nothing is lost meanwhile, and rounds go on after it.
            progress.say(f"{error}; trying again")
            time.sleep(RETRY_SECONDS)


def _rounds(
    link: Link, request: SyncRequest, until: Until, progress: Progress, totals: Totals, began: float
) -> Iterator[Totals]:
    """Rounds until the last one; the totals now and then, and at the end."""
    told, carried = time.monotonic(), 0.0
    with Runner(link, request, progress) as runner:
        while True:
            last = runner.round()
            totals = replace(totals.and_then(last), seconds=time.monotonic() - began)
            is_over = until.is_reached(last) or last.stop_asked
            if is_over or time.monotonic() - carried >= until.sequences:
                runner.carry_sequences()
                carried = time.monotonic()
            if is_over or time.monotonic() - told >= TELL_SECONDS:
                told = time.monotonic()
                yield totals
            if is_over:
                return
            if not last.keys and not last.reloaded:
                time.sleep(until.interval)


def facts(totals: Totals) -> dict[str, Any]:
    """What the task store keeps of a run."""
    last = totals.last
    return {
        "rounds": totals.rounds,
        "keys": totals.keys,
        "lag_seconds": round(last.lag, 3),
        "pending_keys": last.pending,
        "keys_per_second": round(totals.keys / max(totals.seconds, 1e-6), 1),
        "last_round_ms": round(last.milliseconds, 2),
    }


def told_text(totals: Totals) -> str:
    """The same for people."""
    known = facts(totals)
    return (
        f"{known['rounds']:,} rounds, {known['keys']:,} keys ({known['keys_per_second']:,.0f}/s):"
        f" lag {known['lag_seconds']:.1f} s, {known['pending_keys']:,} keys pending,"
        f" last round {known['last_round_ms']:.0f} ms"
    )


class Runner:
    """Carries out rounds on an open link, and knows which way: directly, over tasks, or in foreign-key order."""

    def __init__(self, link: Link, request: SyncRequest, progress: Progress) -> None:
        self.link = link
        self._request = request
        self._progress = progress
        self._starter: EngineStarter | None = None
        reader.allow(application(link.name))

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        reader.stop_all(application(self.link.name))
        if self._starter is not None:
            self._starter.close()

    def round(self, *, everything: bool = False) -> Round:
        """One round of what waits; more keys than fit into a small one become a large one, or all that there are."""
        try:
            return self._round(None if everything else SMALL)
        except QueryError as error:
            if error.sqlstate in _TOO_LONG and self.link.plan.mode != ORDERED:
                return self._round(None if everything else SMALL, spread=True)
            if everything or error.sqlstate not in _DOES_NOT_FIT:
                raise
        # A part of the log did not fit; all of it does.
        return self._round(None)

    def carry_sequences(self) -> None:
        """Set the target's sequences to the values that the source's have now."""
        sequences.write(self.link.target, sequences.read(self.link.source, self.link.plan.sequences))

    def _round(self, most: int | None, *, spread: bool = False) -> Round:
        began = time.monotonic()
        try:
            changes = read_changes(self.link, most, texts=self.link.plan.mode == ORDERED)
            for trouble in changes.troubles:
                self._progress.say(f"the change log met an error, and recorded more than it had to: {trouble}")
            if not changes.entries:
                finish(self.link, changes)
                return replace(done(self.link, changes, began), stop_asked=idle(self.link, changes))
            if self.link.plan.mode == ORDERED:
                return self._ordered(changes, began)
            if is_small(self.link, changes) and changes.is_all and not spread:
                return small_round(self.link, changes, began)
            self.link.source.execute("ROLLBACK")
            changes = read_changes(self.link, None if most is None else LARGE, texts=True)
            return large_round(self.link, changes, self._engine(changes.taken), self._progress, began)
        except BaseException:
            if not self.link.source.closed and self.link.source.info.transaction_status != 0:
                with suppress(Exception):
                    self.link.source.execute("ROLLBACK")
            raise

    def _ordered(self, changes: Changes, began: float) -> Round:
        link = self.link
        tables = link.by_number()
        keys: dict[TableName, Sequence[str] | None] = {
            tables[number].name: texts for number, texts in changes.texts.items()
        }
        keys |= {tables[number].name: None for number in changes.reload}
        targets = [table.target for table in link.tables]
        try:
            with link.target.transaction():
                marks.check_ours(link.target, link.name, link.epoch)
                rows = write_ordered(link.source, link.target, targets, keys, link.plan.foreign_keys)
                stop = mark(link, changes, began).fetchone()[0]
        except Exception as error:
            raise link.named(error) from None
        finish(link, changes)
        return replace(done(link, changes, began), rows=rows, stop_asked=bool(stop))

    def _engine(self, rows: int) -> Engine:
        if self._starter is None:
            request = self._request
            self._starter = EngineStarter(
                request.spark, concurrency_factor=request.concurrency_factor, max_connections=request.max_connections
            )
        return self._starter.get(rows)


@dataclass(frozen=True)
class State:
    """A sync as both ends know it now."""

    known: marks.Status
    # What waits in the change log: entries, keys, seconds of the oldest; None where the log is gone.
    waiting: tuple[int, int, float] | None
    running: tuple[str, ...]


def status(request: SyncRequest) -> State:
    """How far a sync is, asked without writing anything."""
    from trueup.db.statements import load
    from trueup.verbs.sync.model import LOG_SCHEMA

    with open_ends(request.source, request.target, request.name, read_only=(True, True)) as (source, target):
        known = marks.expect(target, request.name, marks.identity(source), request.target.name)
        log = sql.Identifier(LOG_SCHEMA, f"pods_{request.name}")
        found: Any = source.execute("SELECT to_regclass(%s)", [log.as_string(source)]).fetchone()
        waiting = None
        if found[0]:
            query = sql.SQL(load("trueup.verbs.sync", "round.sql")["waiting"]).format(log=log)
            waiting = source.execute(query).fetchone()
        running = tuple(str(holder) for holder in locks.holders(source, locks.SYNC))
        return State(known, waiting, running)


def stop(request: SyncRequest, *, timeout: float) -> bool:
    """Ask whoever carries changes over to end after its round, and wait for it. Whether there was somebody."""
    with open_ends(request.source, request.target, request.name, read_only=(True, False)) as (source, target):
        if not locks.holders(source, locks.SYNC):
            return False
        give_up = time.monotonic() + timeout
        while holders := locks.holders(source, locks.SYNC):
            # Again and again: whoever just begins forgets what was asked before.
            target.execute("UPDATE trueup.syncs SET stop_asked_at = clock_timestamp() WHERE sync = %s", [request.name])
            if time.monotonic() > give_up:
                raise TrueupError(
                    f"{holders[0]} does not end: a copy, a large round or a switchover goes to its end",
                    cure="wait, or end that process",
                    node=request.source.name,
                )
            time.sleep(0.05)
        return True


def drop(request: SyncRequest) -> tuple[bool, bool]:
    """Take all away that trueup put onto both ends; the copied rows stay. Whether there was a log, and a sync."""
    with open_ends(request.source, request.target, request.name, read_only=(False, False)) as (source, target):
        changelog.take(source, request.source)
        for node, connection in ((request.source, source), (request.target, target)):
            if pointer.read(connection, request.name) is not None:
                raise CheckFailed(
                    [f"there is a switchover of the sync {request.name}, which needs it"],
                    cure="end that first: trueup switchover reset, or finish",
                    node=node.name,
                )
        known = marks.read(target, request.name)
        if known is not None and known.source != marks.identity(source):
            raise CheckFailed(
                [f"the sync {request.name} into this database comes from another one"],
                cure="name the source that it was started with",
                node=request.target.name,
            )
        with changelog.open_log(request.source) as log:
            had_log = changelog.drop(log, request.name, patience=request.patience)
        had_sync = marks.forget(target, request.name)
        changelog.let_go(source)
        return had_log, had_sync
