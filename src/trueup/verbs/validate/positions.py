"""The positions of a validation: how far the syncer has applied, how far changes are read, and the lag."""

from __future__ import annotations

import time
from collections import deque

from trueup.capture.log.slot import flushed_position, lsn_number
from trueup.capture.log.syncer import Syncer, copying_tables
from trueup.verbs.validate.routes import Name
from trueup.verbs.validate.sessions import Sessions

_COPYING_SECONDS = 2.0


class Positions:
    """Positions in the log of the source; `read` moves only after a checkpoint is committed."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self.syncer = Syncer("lag")
        # Before `applied`, the syncer has applied all changes. Before `read`, all changes are judged or pending.
        self.applied = self.flushed = self.read = 0
        # Bytes of log that the slot retains on the source.
        self.retained: int | None = None
        # Whether the changes were once read up to the position that the syncer had at the start. Its later positions
        # may never be reached: while changes are judged, it applies the next ones.
        self.has_caught_up = False
        self._goal = 0
        # Tables that a subscription still copies: their changes are not applied in order yet.
        self.copying: set[Name] = set()
        self._copying_at = 0.0
        self._flushed_at: deque[tuple[float, int]] = deque()

    def follow(self, syncer: Syncer) -> None:
        """Follow a syncer from now on; the position of another one does not count for it."""
        if (syncer.kind, syncer.oids, syncer.names) != (self.syncer.kind, self.syncer.oids, self.syncer.names):
            self.forget()
        self.syncer = syncer

    def forget(self) -> None:
        """Forget the position of the syncer: after a gap, or for another syncer."""
        self.applied = self._goal = 0

    def locate(self) -> int:
        """Ask source and syncer for their positions; return the position before which changes may be read."""
        sessions = self._sessions
        with sessions.source_errors():
            self.flushed = flushed_position(sessions.source)
        with sessions.target_errors():
            self.applied = max(self.applied, self.syncer.position(sessions.source, sessions.target))
        self._goal = self._goal or self.applied
        now = time.monotonic()
        if self.syncer.kind == "subscription" and now >= self._copying_at:
            self._copying_at = now + _COPYING_SECONDS
            with sessions.target_errors():
                self.copying = copying_tables(sessions.target)
        self._flushed_at.append((now, self.flushed))
        cutover = sessions.settings.cutover
        return min(self.available, lsn_number(cutover)) if cutover else self.available

    @property
    def available(self) -> int:
        """Return the position before which changes are both applied and flushed."""
        return min(self.applied, self.flushed)

    @property
    def has_passed_start(self) -> bool:
        """Return whether the syncer has applied everything from before the first change that is read."""
        return self.applied >= self.read

    @property
    def decisive(self) -> int:
        """Return the position before which newer changes of pending keys are known.

        Changes behind the cut-over position are not read. There it is enough that the syncer has applied them; a
        changed source row is recognized by its hash.
        """
        return max(self.read, self.available) if self.is_past_cutover else self.read

    @property
    def is_past_cutover(self) -> bool:
        """Return whether all changes before the cut-over position have been read."""
        cutover = self._sessions.settings.cutover
        return bool(cutover) and self.read >= lsn_number(cutover)

    def save(self, read: int) -> None:
        """Write the positions to the meta database, with `read` as the position before which all changes are read.

        It is the last statement of a checkpoint. In memory, the position moves only by `advance`, after the commit.
        """
        self._sessions.meta.rows(
            "progress", name=self._sessions.name, position=read, syncer=self.applied, upstream=self.flushed,
            lag=self._lag_seconds(read), retained=self.retained, reached=self._has_caught_up(read),
        )  # fmt: skip

    def advance(self, read: int) -> None:
        """Take over a position that is committed in the meta database."""
        self.has_caught_up = self._has_caught_up(read)
        self.read = read

    def _has_caught_up(self, read: int) -> bool:
        cutover = self._sessions.settings.cutover
        last = min(self._goal, lsn_number(cutover)) if cutover else self._goal
        return self.has_caught_up or read >= last > 0

    def _lag_seconds(self, read: int) -> float:
        """Return for how many seconds the source has had changes that were not read."""
        while self._flushed_at and self._flushed_at[0][1] <= read:
            self._flushed_at.popleft()
        return time.monotonic() - self._flushed_at[0][0] if self._flushed_at else 0.0
