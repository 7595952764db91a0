"""Changes from the log of a node: the slot of a validation on the source, or its second slot on the target."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass

import psycopg

from trueup.capture.log import slot
from trueup.capture.log.publications import make_publication, publication_exists
from trueup.capture.log.reader import SlotChanges, SlotReader
from trueup.capture.log.slot import Slot, SlotLost
from trueup.errors import CheckFailed
from trueup.verbs.validate.meta import Stored
from trueup.verbs.validate.routes import Name
from trueup.verbs.validate.sessions import MARK, Sessions
from trueup.verbs.validate.source import Opened, Pulled
from trueup.verbs.validate.tables import Tables

FULL_CHECK = "compare all rows: start the validation again with --scrub-share, or run trueup diff"
_ADVANCE_SECONDS = 1.0
# The first version whose output plugin reports messages.
_MESSAGES = 140000
# Decoding starts at the last record of running transactions, which the server writes every 15 s. When more log than
# this must be decoded again for each read, the server is asked for such a record.
_REREAD_BYTES = 8 * 1024 * 1024
# With more log than this behind the slot, the slot is advanced before the next read.
_RESENT_BYTES = 1024 * 1024
# After a start, how long reading may pause before the limit of retained log applies.
_CATCH_UP_SECONDS = 60.0


@dataclass(frozen=True)
class LogSide:
    """The log of one node: what the meta database has about it."""

    # The place of the node in `Sessions.servers`.
    number: int
    slot: str
    publication: str
    owns_publication: bool
    position: int | None
    token: str
    token_end: int | None
    # Whether reading starts at a new position: also if a first start ended before it had one on this node.
    is_new: bool


def source_side(stored: Stored) -> LogSide:
    """Return the slot on the source."""
    return LogSide(
        0, stored.slot, stored.publication, stored.owns_publication, stored.position, stored.token, stored.token_end,
        stored.needs_new_start,
    )  # fmt: skip


def target_side(stored: Stored) -> LogSide:
    """Return the slot on the target; both nodes may be databases of one server, which has one list of slots."""
    name = f"{stored.slot}_t"
    is_new = stored.needs_new_start or stored.target_position is None
    return LogSide(1, name, name, True, stored.target_position, stored.target_token, stored.target_token_end, is_new)


class LogSource:
    """Reads a slot of a validation with a session of its own."""

    def __init__(self, sessions: Sessions, tables: Tables, side_of: Callable[[Stored], LogSide] = source_side) -> None:
        self._sessions = sessions
        self._tables = tables
        self._side_of = side_of
        self._number = side_of(sessions.stored).number
        self._open: SlotReader | None = None
        self._released = 0
        self._release_at = 0.0
        self._may_log_snapshot = True
        # The slot stays before the last mark, so that the next start can read it.
        self._mark: int | None = None
        # The last read.
        self._changes: SlotChanges | None = None
        # At the first check after `open`: the end of the log; then how far it is read, and since when.
        self._behind: tuple[int, int, float] | None = None

    @property
    def _reader(self) -> SlotReader:
        assert self._open is not None
        return self._open

    def prepare(self, stored: Stored) -> None:
        """Create or correct the publication of the validation; check that the one of the user exists."""
        sessions, side = self._sessions, self._side_of(stored)
        self._behind = None
        node = sessions.servers[self._number]
        connection = sessions.connect(node, read_only=False)
        self._open = SlotReader(connection, node, side.slot, side.publication, cure=FULL_CHECK)
        with self._errors():
            exists = publication_exists(connection, side.publication)
            if not exists and not side.is_new:
                raise SlotLost(
                    f"publication {side.publication} was dropped: changes since then are not in the log of the slot",
                    cure=FULL_CHECK if side.owns_publication else f"create the publication again, then {FULL_CHECK}",
                    node=node.name,
                )
            if side.owns_publication:
                make_publication(connection, side.publication, self._published())
            elif not exists:
                raise CheckFailed(
                    [f"publication {side.publication} does not exist"],
                    cure="create it, or omit --publication",
                    node=node.name,
                )

    def _published(self) -> list[Name]:
        """Return the tables of the publication."""
        return [self._tables.routes[name].source for name in self._tables.pairs]

    def _errors(self) -> AbstractContextManager[None]:
        return self._sessions.target_errors() if self._number else self._sessions.source_errors()

    def open(self, stored: Stored) -> Opened:
        """Open the slot; create it at the first start, and after changes were lost."""
        sessions, connection, side = self._sessions, self._reader.connection, self._side_of(stored)
        node = sessions.nodes[self._number]
        with self._errors():
            state = None if side.is_new else slot.look(connection, side.slot)
            if state is not None and side.position is not None and state.confirmed <= side.position:
                self._check_mark(side)
                # The position of the last mark is not stored: the slot stays until the next mark.
                self._mark = state.confirmed if side.token else None
                return Opened(side.position, is_new=False)
            if not side.is_new:
                raise SlotLost(
                    f"replication slot {side.slot} was dropped, or advanced by another reader",
                    cure=FULL_CHECK,
                    node=node.name,
                )
            slot.drop(connection, side.slot, "")
            self._mark = None
            return Opened(slot.make_slot(connection, side.slot), is_new=True)

    def close(self) -> None:
        """Close the session."""
        if self._open is not None:
            self._open.connection.close()

    def check(self, read: int, lag: float) -> int | None:
        """Raise SlotLost if the slot is lost; drop it if it retains too much log. Return the retained bytes."""
        reader = self._reader
        with self._errors():
            state = reader.state()
            if not self._is_catching_up(state, read, lag):
                self._limit_retained(state)
            if state.confirmed - state.restart > _REREAD_BYTES and self._may_log_snapshot:
                self._log_snapshot()
        return state.retained

    def _is_catching_up(self, state: Slot, read: int, lag: float) -> bool:
        """Return whether log that was retained while nothing read the slot is being read now.

        The limit applies again when it is read, or is not read on for a while. The server needs some time, too, to
        notice that the log is no longer needed.
        """
        now = time.monotonic()
        if self._behind is None:
            limit = self._sessions.settings.max_retained_wal
            is_behind = 0 < limit < state.retained
            self._behind = (state.restart + state.retained, read, now) if is_behind else (0, read, -math.inf)
        end, last_read, moved_at = self._behind
        if last_read < read and last_read < end:
            self._behind = end, read, now
        return now < moved_at + _CATCH_UP_SECONDS + lag

    def _limit_retained(self, state: Slot) -> None:
        reader, limit = self._reader, self._sessions.settings.max_retained_wal
        if limit and state.retained > limit:
            slot.drop(reader.connection, reader.slot, "")
            raise SlotLost(
                f"replication slot {reader.slot} retained {state.retained:,} bytes of log, more than --max-retained-wal"
                f" ({limit:,}), and was dropped so that the server can remove them",
                cure=f"wait until the syncer has caught up, then {FULL_CHECK}",
                node=self._sessions.nodes[self._number].name,
            )

    def read(self, start: int, end: int) -> Pulled | None:
        """Return the changes from `start` on that were committed before `end`, at most about `batch` messages."""
        settings = self._sessions.settings
        self._changes = self._reader.changes(start, end, self._tables.key_places, max_messages=settings.batch)
        return Pulled(self._changes, needs=start)

    def confirm(self, pulled: Pulled) -> None:
        """Do nothing: the slot is advanced by `release`."""

    def leave_mark(self) -> None:
        """Write a random token into the log, after the changes that were judged; the slot is not advanced beyond it."""
        connection, meta = self._reader.connection, self._sessions.meta
        if connection.info.server_version < _MESSAGES:
            return
        token = secrets.token_hex(16)
        with self._errors():
            mark = slot.emit_message(connection, MARK, token)
            end = slot.flushed_position(connection)
        statement = "put_target_token" if self._number else "put_token"
        meta.rows(statement, name=self._sessions.name, token=token, end=end)
        self._mark = mark

    def _check_mark(self, side: LogSide) -> None:
        """Raise SlotLost if the last mark is not in the log: then this log is not the one that was read before."""
        if not side.token or side.token_end is None:
            return
        token = side.token.encode()
        with closing(self._reader.messages(side.token_end, 0)) as messages:
            if any(message.endswith(token) for message in messages):
                return
        raise SlotLost(
            f"the log of {self._sessions.nodes[self._number].name} does not have the last mark of this validation: the"
            f" {'target' if self._number else 'source'} was restored, or its slot was advanced by another reader",
            cure=FULL_CHECK,
            node=self._sessions.nodes[self._number].name,
        )

    def release(self, position: int, *, at_once: bool = False) -> None:
        """Advance the slot, once per second, because it costs the server a read of the log, or at once.

        The server sends everything behind the slot again for each read, which costs more: then it does not wait. It
        does not wait after a read that was cut either: the next one would be cut at the same message.
        """
        is_cut = self._changes is not None and self._changes.is_cut
        most = 0 if is_cut else _RESENT_BYTES
        if self._open and self._mark is not None and position - self._mark > most:
            self.leave_mark()
        now = time.monotonic()
        at_once = at_once or now >= self._release_at or position - self._released > most
        position = position if self._mark is None else min(position, self._mark)
        if self._open and position > self._released and at_once:
            self._reader.advance(position)
            self._released, self._release_at = position, now + _ADVANCE_SECONDS

    def _log_snapshot(self) -> None:
        try:
            self._reader.connection.execute("SELECT pg_log_standby_snapshot()")
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedFunction):
            # Needs PostgreSQL 16 and a grant; without it, the server writes such a record by itself before long.
            self._may_log_snapshot = False
