"""Changes out of the source's log: the slot of a validation, read and advanced."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import Error

from trueup.capture.log import pgoutput, slot
from trueup.config.model import Node
from trueup.db.node import error_from_server
from trueup.errors import QueryError
from trueup.verbs.validate.meta import as_json

if TYPE_CHECKING:
    from trueup.verbs.validate.validator import Validator

_ADVANCE_SECONDS = 1.0
# Undefined object, and object not in prerequisite state: what the server says of a slot that is gone or lost.
_NO_SLOT = ("42704", "55000")
# A slot begins to read at the last summary of running transactions, which the server writes every 15 s. After this much
# log it is asked for one, where it lets us.
_REREAD_BYTES = 8 * 1024 * 1024


class Log:
    """The changes of a logical slot."""

    def __init__(self, validator: Validator) -> None:
        self._of = validator
        self._session: Any = None
        self._advanced = 0
        self._advance_at = 0.0
        self._may_summarize = True

    def open(self) -> int:
        """The slot as we left it; a new one at the first start, or after it was lost. Gives where to go on."""
        of = self._of
        # A session of its own: while it gives the changes, the other one must be free for questions.
        self._session = of.session(of.nodes[0], read_only=False)
        stored, tables = of.stored, of.tables
        if stored.owns_publication:
            slot.make_publication(of.source, stored.publication, [tables.routes[name].source for name in tables.pairs])
        found = None if stored.gap and "to" not in stored.gap else slot.look(of.source, stored.slot)
        if found is not None and stored.position is not None and found.confirmed <= stored.position:
            return stored.position
        if stored.position is not None and not stored.gap:
            raise slot.SlotLost(
                f"the slot {stored.slot} is gone, or was advanced by somebody else", cure="a full check is needed"
            )
        slot.drop(of.source, stored.slot, "")
        position = slot.make_slot(of.source, stored.slot)
        gap = as_json({**stored.gap, "to": slot.lsn_text(position)}) if stored.gap else None
        of.meta.rows("begin_at", name=of.name, position=position, slot=stored.slot, gap=gap)
        return position

    def close(self) -> None:
        """End its session."""
        if self._session is not None:
            self._session.close()

    def look(self) -> None:
        """Is the slot still there, and does it keep too much log?"""
        of = self._of
        found = slot.look(of.source, of.stored.slot)
        if found is None:
            raise slot.SlotLost(f"the slot {of.stored.slot} is gone", cure="a full check is needed")
        of.retained = found.retained
        limit = of.settings.max_retained_wal
        if limit and found.retained > limit:
            slot.drop(of.source, of.stored.slot, "")
            raise slot.SlotLost(
                f"the slot {of.stored.slot} kept {found.retained:,} bytes of log, more than --max-retained-wal"
                f" ({limit:,}): it was dropped, so that the server can remove them",
                cure="start it again when the syncer has caught up; a full check is needed then",
            )
        if found.confirmed - found.restart > _REREAD_BYTES and self._may_summarize:
            self._summarize()

    def read(self, upto: int) -> bool:
        """Read and judge what was committed before `upto`; whether there may be more."""
        of, limit = self._of, self._of.settings.batch
        peeked = slot.peek(self._session, of.stored.slot, of.stored.publication, upto=upto, most=limit)
        messages = _Counted(peeked, of.nodes[0])
        with self._lost_slot_said():
            of.take(pgoutput.decode(messages, of.tables.places), lambda end: end if messages.count >= limit else upto)
        return messages.count >= limit

    def let_go(self, *, at_once: bool) -> None:
        """Let the server forget what is checkpointed; not after every batch, for it costs the server a read."""
        of, now = self._of, time.monotonic()
        if of.flushed and of.position > self._advanced and (at_once or now >= self._advance_at):
            with self._lost_slot_said():
                slot.advance(self._session, of.stored.slot, min(of.position, of.flushed))
            self._advanced, self._advance_at = of.position, now + _ADVANCE_SECONDS

    @contextmanager
    def _lost_slot_said(self) -> Iterator[None]:
        """A slot that is gone under our hands is an error of the server's words: look what it is."""
        try:
            yield
        except (psycopg.Error, QueryError) as error:
            if error.sqlstate in _NO_SLOT:
                self.look()
            raise

    def _summarize(self) -> None:
        try:
            self._of.source.execute("SELECT pg_log_standby_snapshot()")
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedFunction):
            # PostgreSQL 16 and newer, and who was granted it; the server writes one by itself before long.
            self._may_summarize = False


class _Counted:
    """Messages, counted as they pass; they are read inside of a transaction of another node, so errors say whose."""

    def __init__(self, messages: Iterable[bytes], node: Node) -> None:
        self._messages = iter(messages)
        self._node, self._error = node, Error
        self.count = 0

    def __iter__(self) -> _Counted:
        return self

    def __next__(self) -> bytes:
        try:
            message = next(self._messages)
        except self._error as error:
            raise error_from_server(error, self._node) from None
        self.count += 1
        return message
