"""Changes of the target: with `both_sides`, those of other writers than the syncer are judged.

They come from a second slot (`target_log`) or from triggers on the target (`target_tube`). A round reads the end of the
changes of the target before it asks for the position of the syncer, and judges them last: then changes of the syncer
among them were judged as changes of the source (`compared`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from trueup.capture.log.pgoutput import KeyLost
from trueup.capture.log.syncer import Syncer
from trueup.capture.log.visible import wait_until_visible
from trueup.rows.keys import KeyValues
from trueup.verbs.validate.batch import UNCHECKED, Batch, Touches
from trueup.verbs.validate.checks import Checker
from trueup.verbs.validate.meta import Stored
from trueup.verbs.validate.pending import TARGET, Touch
from trueup.verbs.validate.proving.compared import ComparedKeys, Moment
from trueup.verbs.validate.proving.scrub import Scrubber
from trueup.verbs.validate.proving.target_changes import Captured, TargetChanges, find_target_pair
from trueup.verbs.validate.proving.target_log import TargetLog
from trueup.verbs.validate.proving.target_tube import TargetTube
from trueup.verbs.validate.sessions import Sessions
from trueup.verbs.validate.source import Pulled
from trueup.verbs.validate.tables import Tables

_KEYS_PER_CHECK = 10_000
_CHECK_SECONDS = 2.0
# How long changes of the target wait until those of the source are judged that the syncer had applied before.
WAIT_SECONDS = 1.0


class TargetCapture:
    """Reads the changes of the target and judges those of others than the syncer."""

    def __init__(self, sessions: Sessions, tables: Tables, checker: Checker, scrubber: Scrubber) -> None:
        self._sessions = sessions
        self._tables = tables
        self._checker = checker
        self._scrubber = scrubber
        reader = TargetLog if sessions.settings.changes == "log" else TargetTube
        self._changes: TargetChanges = reader(sessions, tables)
        self.compared = ComparedKeys()
        self.read = 0
        # Changes that are not judged yet, and since when; the number of the last moment, and the position of the source
        # from which on the changes of the syncer among them are judged.
        self._pulled: Pulled | None = None
        self._pulled_at = 0.0
        self._since = 0
        self._needs: int | None = None
        self._has_judged = False
        self._checked_at = 0.0
        # How the tables were captured at the last look.
        self._captured: dict[str, Captured] = {}

    def open(self, stored: Stored, syncer: Syncer, position: int) -> None:
        """Open the slot or the change log on the target; create it at a new start. `position` is that of the source."""
        meta, name = self._sessions.meta, self._sessions.name
        self.forget()
        opened, captured = self._changes.begin(stored, syncer, position)
        rows = [] if opened.is_new else self._tables.rows()
        self._captured = {
            row["source"]: Captured(row["target_capture"], row["target_problem"])
            for row in rows
            if row["target_capture"] is not None
        }
        with meta.transaction():
            if opened.is_new:
                meta.rows("target_begin", name=name, position=opened.position)
            self._note(captured)
        self.read, self._has_judged = opened.position, not opened.is_new

    def close(self) -> None:
        """Close the session."""
        self._changes.close()

    def check(self) -> None:
        """Health check; raise SlotLost if changes were lost."""
        if time.monotonic() < self._checked_at + _CHECK_SECONDS:
            return
        self._checked_at = time.monotonic()
        if self._has_judged:
            self._has_judged = False
            self._changes.leave_mark()
        self._changes.check(self.read, 0.0)

    def release(self, *, at_once: bool = False) -> None:
        """Let the target discard what is in a committed checkpoint."""
        if at_once and self._has_judged:
            self._has_judged = False
            self._changes.leave_mark()
        self._changes.release(self.read, at_once=at_once)

    def forget(self) -> None:
        """Forget changes that are not judged yet, and what was compared: tables are planned again."""
        self._pulled = None
        self.compared.forget()

    def moment(self) -> Moment | None:
        """Return the moment before keys are compared; None if the syncer is recognized without."""
        if self._changes.skips_applied:
            return None
        with self._sessions.target_errors():
            return self.compared.moment(self._sessions.target)

    def pull_for_check(self) -> None:
        """Find changes again if there were none: pods that are claimed after keys were compared need a comparison."""
        is_empty = self._pulled is None or self._pulled.pods == ()
        if is_empty and not self._changes.skips_applied:
            self._pulled = None
            self.pull(at_once=True)

    def pull(self, *, at_once: bool = False) -> None:
        """Find changes to judge; called before the syncer is asked for its position."""
        self.check()
        if self._pulled is not None:
            return
        self._pulled = pulled = self._changes.pull(self.read, at_once=at_once)
        if pulled is None:
            return
        self._pulled_at, self._since, self._needs = time.monotonic(), self.compared.number, None
        self._note(self._changes.found(pulled))
        for warning in pulled.coverage.warnings:
            self._sessions.log(f"on the target: {warning}")

    def judge(self, position: int, applied: int, look: Callable[[], object]) -> bool:
        """Judge changes of the target. Return whether there are more.

        `position` is that of the source, `applied` that of the syncer as far as it may be read. Rows that differ become
        pending at `position`: what holds for changes of the source in flight holds for them.
        """
        pulled = self._pulled
        if pulled is None:
            return False
        self._needs = applied if self._needs is None else self._needs
        is_early = position < self._needs and time.monotonic() < self._pulled_at + WAIT_SECONDS
        if is_early and pulled.pods != () and not self._changes.skips_applied:
            return False
        # After an error they are read again.
        self._pulled = None
        sessions, changes = self._sessions, self._changes
        batch = Batch(
            lambda relation: find_target_pair(self._tables, relation), self.read,
            is_judged=lambda table, key, xid: self.compared.has(table, key, xid, self._since),
        )  # fmt: skip
        try:
            with sessions.meta.transaction():
                for change in pulled.changes:
                    batch.add(change)
                    if batch.size >= _KEYS_PER_CHECK and not self._check(batch.take(), position):
                        return False
                if not self._check(batch.take(), position):
                    return False
                self._truncated(batch, position)
                look()
                self._note(changes.captured())
                others = sum(sum(counts.values()) for counts in batch.counts.values())
                reached = max(self.read, pulled.changes.position)
                self._store(pulled, reached, others, batch.judged)
        except KeyLost as error:
            lost = changes.without_keys(error.table or "")
            if not lost:
                raise
            # The others go on: the same changes are read again, and those of this table count as not checked.
            self._scrubber.forget()
            with sessions.meta.transaction():
                self._note(lost)
            return True
        self.read = reached
        self.compared.forget_before(reached)
        self._has_judged = self._has_judged or others > 0
        self._checker.count()
        changes.confirm(pulled)
        return pulled.changes.is_cut

    def _store(self, pulled: Pulled, position: int, others: int, judged: int) -> None:
        """Store the position and, with triggers, the pods, which are deleted after the commit."""
        meta, name = self._sessions.meta, self._sessions.name
        if pulled.pods is not None:
            mark = pulled.mark
            meta.rows("put_target_pods", name=name, pods=list(pulled.pods), token=mark.token, round=mark.round)
        applied = self._changes.take_applied() + judged
        meta.rows("target_progress", name=name, position=position, others=others, applied=applied)

    def _check(self, touches: Touches, position: int) -> bool:
        """Compare changed keys; return False if changes are not visible on the target yet: then nothing is stored."""
        if not touches:
            return True
        xids = {touch.xid for keys in touches.values() for touch in keys.values()} - {0}
        with self._sessions.target_errors():
            if wait_until_visible(self._sessions.target, xids):
                return False
        self._scrubber.touch(touches)
        keys: dict[str, Sequence[KeyValues]] = {name: list(of_table) for name, of_table in touches.items()}
        failed = self._checker.compare(dict(self._tables.pairs), keys)
        touch = Touch(TARGET, position, position, 0, None)
        for table in touches:
            self._scrubber.suspect(table, tuple(key for name, key in failed if name == table), touch)
        return True

    def _truncated(self, batch: Batch, position: int) -> None:
        for table in batch.truncated:
            if table in self._tables.pairs:
                self._scrubber.touch_tables([table])
                self._checker.suspect_table(table, Touch(TARGET, position, position, 0, None))
        for table, counts in batch.counts.items():
            if counts[UNCHECKED] and table:
                self._tables.void(table, "changes on the target were not checked")

    def _note(self, captured: Mapping[str, Captured]) -> None:
        """Store how tables are captured; void the certificates of those whose capture was interrupted."""
        meta, name = self._sessions.meta, self._sessions.name
        for table, now in captured.items():
            before = self._captured.get(table)
            if before == now or table not in self._tables.pairs:
                continue
            if before is not None and before.text != now.text:
                self._tables.void(table, now.problem or self._changes.interrupted)
            meta.rows("target_capture", name=name, source=table, capture=now.text, problem=now.problem)
            self._captured[table] = now
