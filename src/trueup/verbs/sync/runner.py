"""Runs rounds on an open link and chooses their kind: small (through the driver), large (over tasks), or ordered."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType

from trueup.db import reader
from trueup.db.connection import one_value
from trueup.db.foreign_keys import TableName
from trueup.engine.choose import EngineStarter
from trueup.engine.progress import Progress
from trueup.engine.work import Engine
from trueup.errors import QueryError
from trueup.rows.write.ordered import write_ordered
from trueup.verbs.sync import chain, sequences, state
from trueup.verbs.sync import round as small
from trueup.verbs.sync.large import large_round
from trueup.verbs.sync.link import Link
from trueup.verbs.sync.model import Round
from trueup.verbs.sync.request import SyncRequest
from trueup.verbs.sync.round import NO_CHECKS, Changes, Checks, Rewritten
from trueup.verbs.sync.silence import silence

# Maximum keys of a large round; the rest waits for the next one.
LARGE = 1_000_000
# How often a round is repeated because a table was rewritten meanwhile.
_REPEATS = 10
# A part of the log may violate a constraint that all of it does not: unique, exclusion, foreign key, restrict.
_DOES_NOT_FIT = ("23505", "23P01", "23503", "23001")
# The rows are too long for one value: program limit exceeded, out of memory.
_TOO_LONG = ("54000", "53200")


class Runner:
    """Runs rounds on a link; a context manager that stops its readers and its engine."""

    def __init__(self, link: Link, request: SyncRequest, progress: Progress) -> None:
        self.link = link
        self._request = request
        self._progress = progress
        self._starter: EngineStarter | None = None
        reader.allow(link.application)

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        reader.stop_all(self.link.application)
        if self._starter is not None:
            self._starter.close()

    def round(self, *, everything: bool = False, small_keys: int = 0, checks: Checks = NO_CHECKS) -> Round:
        """Run one round over what is in the change log, and return what it did.

        With `everything` the round takes all entries, else a bounded part of them. A round of at most `small_keys` keys
        (0: the usual number) is a small one. `checks` are called during the round and may raise.
        """
        limit = None if everything else max(1, small.SMALL)
        small_keys = small_keys or small.SMALL
        try:
            return self._round(limit, small_keys, checks)
        except QueryError as error:
            if error.sqlstate in _TOO_LONG and not self.link.plan.is_ordered:
                return self._round(limit, 0, checks)
            if everything or error.sqlstate not in _DOES_NOT_FIT:
                raise
        # A part of the log did not fit; all of it does.
        return self._round(None, small_keys, checks)

    def check_chain(self) -> None:
        """Raise if another sync has closed a ring meanwhile; record where the rows come from.

        Disable triggers of the target that were created or enabled since the link was opened.
        """
        link = self.link
        for trigger in silence(link.target, link.name, link.epoch, link.tables, link.plan.mode):
            self._progress.say(f"{trigger} was enabled on the target: disabled it again until the switchover")
        found = chain.origins(link.source, link.target, link.id, link.tables, link.target_node.name)
        chain.record(link.target, link.name, link.epoch, found)

    def copy_sequences(self) -> None:
        """Set the target's sequences to the current values of the source's."""
        values = sequences.read(self.link.source, self.link.plan.sequences)
        with small.checked_transaction(self.link):
            sequences.write(self.link.target, values)

    def _round(self, limit: int | None, small_keys: int, checks: Checks) -> Round:
        """Run a round; repeat it if a table was rewritten while it read: the entries are still in the change log."""
        for _ in range(_REPEATS):
            try:
                return self._round_once(limit, small_keys, checks)
            except Rewritten as error:
                self._progress.say(f"{error.message}: repeating the round")
        return self._round_once(limit, small_keys, checks)

    def _round_once(self, limit: int | None, small_keys: int, checks: Checks) -> Round:
        link, began = self.link, time.monotonic()
        try:
            changes = small.read_changes(link, limit, texts=link.plan.is_ordered)
            for error in changes.errors:
                self._progress.say(f"a trigger of the change log failed and recorded more keys than needed: {error}")
            if not changes.entries:
                small.finish(link, changes, checks)
                return replace(small.round_of(link, changes, began), stop_asked=small.record_empty(link, changes))
            if link.plan.is_ordered:
                return self._ordered(small.begin(link, changes), began, checks)
            if small.is_small(link, changes, small_keys) and changes.is_all:
                return small.small_round(link, small.begin(link, changes), began, checks)
            link.source.execute("ROLLBACK")
            changes = small.begin(link, small.read_changes(link, None if limit is None else LARGE, texts=True))
            return large_round(link, changes, self._engine(changes.taken), self._progress, began, checks)
        except BaseException:
            if not link.source.closed and link.source.info.transaction_status != 0:
                with suppress(Exception):
                    link.source.execute("ROLLBACK")
            raise

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
