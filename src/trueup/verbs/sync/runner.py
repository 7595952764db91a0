"""Runs rounds on an open link and chooses their kind: small (through the driver), large (over tasks), or ordered."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from types import TracebackType

import psycopg

from trueup.config.wording import counted
from trueup.db import reader, sequences
from trueup.db.connection import one_value
from trueup.db.foreign_keys import TableName
from trueup.db.lock_holders import LOCK_NOT_AVAILABLE
from trueup.engine.choose import EngineStarter
from trueup.engine.progress import Progress
from trueup.engine.work import Engine
from trueup.errors import QueryError
from trueup.rows.write import large_objects
from trueup.rows.write.ordered import write_ordered
from trueup.verbs.sync import round as small
from trueup.verbs.sync import state
from trueup.verbs.sync.identity import chain
from trueup.verbs.sync.large import large_round
from trueup.verbs.sync.link import Link
from trueup.verbs.sync.model import LARGE_OBJECTS, Round
from trueup.verbs.sync.request import SyncRequest
from trueup.verbs.sync.round import NO_CHECKS, Changes, Checks, Rewritten, TooLarge
from trueup.verbs.sync.silence import silence

# Maximum keys of a large round; the rest waits for the next one.
LARGE = 1_000_000
# How often a round is repeated because a table was rewritten meanwhile.
_REPEATS = 10
# A part of the log may violate a constraint that all of it does not: unique, exclusion, foreign key, restrict.
_DOES_NOT_FIT = ("23505", "23P01", "23503", "23001")
# The rows are too long for one value: program limit exceeded, out of memory.
_TOO_LONG = (small.TOO_LONG, "53200")


@dataclass(frozen=True)
class _Asked:
    """What a round should do."""

    # Maximum keys (None: all), and the most of them that pass through the driver.
    limit: int | None
    small_keys: int
    checks: Checks
    # Tables to lock, by their numbers, or whether all are locked already.
    locked: tuple[int, ...] = ()
    held: bool = False
    is_final: bool = False


class Runner:
    """Runs rounds on a link; a context manager that stops its readers and its engine."""

    def __init__(self, link: Link, request: SyncRequest, progress: Progress) -> None:
        self.link = link
        self._request = request
        self._progress = progress
        self._starter: EngineStarter | None = None
        # Not before this time: see `copy_large_objects`.
        self._large_objects_at = 0.0
        reader.allow(link.application)

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        reader.stop_all(self.link.application)
        if self._starter is not None:
            self._starter.close()

    def round(self, *, everything: bool = False, checks: Checks = NO_CHECKS, locked: Sequence[int] = ()) -> Round:
        """Run one round over what is in the change log, and return what it did.

        With `everything` the round takes all entries, else a bounded part of them. `checks` are called during the round
        and may raise; the tables with the numbers `locked` are locked until then.
        """
        asked = _Asked(None if everything else max(1, small.SMALL), small.SMALL, checks, tuple(locked))
        try:
            return self._round(asked)
        except QueryError as error:
            if error.sqlstate in _TOO_LONG and not self.link.plan.is_ordered:
                return self._round(replace(asked, small_keys=0))
            if everything or error.sqlstate not in _DOES_NOT_FIT:
                raise
        # A part of the log did not fit; all of it does.
        return self._round(replace(asked, limit=None))

    def final_round(self, keys: int, *, checks: Checks, held: bool) -> Round:
        """Run a round over all entries without tasks, which would open sessions; raise TooLarge after more than `keys`.

        With `held` the session with the source has locked all tables: see `read_changes`.
        """
        try:
            return self._round(_Asked(None, keys, checks, held=held, is_final=True))
        except QueryError as error:
            if error.sqlstate in _TOO_LONG:
                raise TooLarge(error.message) from None
            raise

    def check_chain(self) -> None:
        """Raise if another sync has closed a ring meanwhile; record where the rows come from.

        Disable triggers of the target that were created or enabled since the link was opened.
        """
        link = self.link
        for trigger in silence(link.target, link.name, link.epoch, link.tables, link.plan.mode):
            self._progress.say(f"{trigger} was enabled on the target: disabled it again until the switchover")
        found = chain.origins(link.source, link.target, link.id, link.names, link.target_node.name)
        chain.record(link.target, link.name, link.epoch, found)

    def copy_sequences(self) -> None:
        """Set the target's sequences to the current values of the source's."""
        values = sequences.read(self.link.source, self.link.plan.sequences)
        with small.checked_transaction(self.link):
            sequences.write(self.link.target, values)

    def copy_large_objects(self, *, is_first: bool = False) -> None:
        """Make large objects equal on the target; do nothing if that took more than a tenth of the time since then.

        `is_first`: record the new ones, because a start that is not finished may be dropped.
        """
        link, began = self.link, time.monotonic()
        is_aside = any(problem.where == LARGE_OBJECTS for problem in link.aside)
        if not link.plan.large_objects or is_aside or began < self._large_objects_at:
            return
        try:
            written = large_objects.make_equal(
                link.source,
                link.target,
                lambda: state.writing(link.target, link.name, link.epoch),
                self._record_large_object if is_first else lambda oid: None,
            )
        except psycopg.Error as error:
            raise link.error_from_server(error) from error
        if written:
            self._progress.say(f"copied {counted(written, 'large object')}")
        self._large_objects_at = time.monotonic() + 10 * (time.monotonic() - began)

    def _record_large_object(self, oid: int) -> None:
        self.link.target.execute(state.statement("large_object_created"), [self.link.name, oid])

    def _round(self, asked: _Asked) -> Round:
        """Run a round; repeat it if a table was rewritten while it read: the entries are still in the change log."""
        for _ in range(0 if asked.held else _REPEATS):
            try:
                return self._round_once(asked)
            except Rewritten as error:
                self._progress.say(f"{error.message}: repeating the round")
        return self._round_once(asked)

    def _round_once(self, asked: _Asked) -> Round:
        link, began = self.link, time.monotonic()
        try:
            texts = link.plan.is_ordered
            changes = small.read_changes(link, asked.limit, texts=texts, locked=asked.locked, held=asked.held)
            for error in changes.errors:
                self._progress.say(f"a trigger of the change log failed and recorded more keys than needed: {error}")
            with self._giving_way(changes, asked):
                return self._copy(changes, asked, began)
        except BaseException:
            if not link.source.closed and link.source.info.transaction_status != 0:
                with suppress(Exception):
                    link.source.execute("ROLLBACK")
            raise

    def _copy(self, changes: Changes, asked: _Asked, began: float) -> Round:
        link, checks = self.link, asked.checks
        if not changes.entries:
            small.finish(link, changes, checks)
            return replace(small.round_of(link, changes, began), stop_asked=small.record_empty(link, changes))
        if link.plan.is_ordered:
            return self._ordered(small.begin(link, changes), began, checks)
        if small.is_small(link, changes, asked.small_keys) and changes.is_all:
            return small.small_round(link, small.begin(link, changes), began, checks)
        if asked.is_final:
            raise TooLarge(f"{changes.taken:,} keys, and {changes.reload_bytes:,} bytes of truncated tables")
        link.source.execute("ROLLBACK")
        limit = None if asked.limit is None else LARGE
        changes = small.begin(link, small.read_changes(link, limit, texts=True, locked=asked.locked))
        return large_round(link, changes, self._engine(changes.taken), self._progress, began, checks)

    @contextmanager
    def _giving_way(self, changes: Changes, asked: _Asked) -> Iterator[None]:
        """Repeat a round that has locked tables and cannot read another one: an application may wait for the former."""
        try:
            yield
        except (psycopg.errors.LockNotAvailable, QueryError) as error:
            if error.sqlstate != LOCK_NOT_AVAILABLE or asked.held or not (changes.reload or asked.locked):
                raise
            raise Rewritten(
                f"a table is locked while a round reads it: {error}", cure="run the same command again"
            ) from None

    def _ordered(self, changes: Changes, began: float, checks: Checks) -> Round:
        link = self.link
        tables = link.by_number()
        keys: dict[TableName, Sequence[str] | None] = {
            tables[number].name: texts for number, texts in changes.texts.items()
        }
        keys |= {tables[number].name: None for number in changes.reload}
        targets = [table.target for table in link.tables]
        try:
            with state.writing(link.target, link.name, link.epoch):
                # Also those that foreign keys with an action write to.
                small.check_tables(link, link.tables)
                rows = write_ordered(link.source, link.target, targets, keys, link.plan.foreign_keys)
                read = [table for table in link.tables if table.name in keys]
                small.refuse_rewritten(small.rewritten(link.source, read))
                stop = one_value(small.record(link, changes, began))
        except Exception as error:
            raise link.error_from_server(error) from None
        small.finish(link, changes, checks)
        return replace(small.round_of(link, changes, began), rows=rows, stop_asked=bool(stop))

    def _engine(self, rows: int) -> Engine:
        if self._starter is None:
            request = self._request
            self._starter = EngineStarter(
                request.spark, concurrency_factor=request.concurrency_factor, max_connections=request.max_connections
            )
        return self._starter.get(rows)
