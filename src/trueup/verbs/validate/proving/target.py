"""Changes of the target: with `both_sides`, those of other writers than the syncer are judged.

They come from a second slot (`target_log`) or from triggers on the target (`target_tube`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from trueup.capture.log.syncer import Syncer
from trueup.capture.log.visible import wait_until_visible
from trueup.rows.keys import KeyValues
from trueup.verbs.validate.batch import UNCHECKED, Batch, Touches
from trueup.verbs.validate.checks import Checker
from trueup.verbs.validate.meta import Stored
from trueup.verbs.validate.pending import TARGET, Touch
from trueup.verbs.validate.proving.scrub import Scrubber
from trueup.verbs.validate.proving.target_changes import Captured, TargetChanges, find_target_pair
from trueup.verbs.validate.proving.target_log import TargetLog
from trueup.verbs.validate.proving.target_tube import TargetTube
from trueup.verbs.validate.sessions import Sessions
from trueup.verbs.validate.source import Pulled
from trueup.verbs.validate.tables import Tables

_KEYS_PER_CHECK = 10_000
_CHECK_SECONDS = 2.0


class TargetCapture:
    """Reads the changes of the target and judges those of others than the syncer."""

    def __init__(self, sessions: Sessions, tables: Tables, checker: Checker, scrubber: Scrubber) -> None:
        self._sessions = sessions
        self._tables = tables
        self._checker = checker
        self._scrubber = scrubber
        reader = TargetLog if sessions.settings.changes == "log" else TargetTube
        self._changes: TargetChanges = reader(sessions, tables)
        self.read = 0
        self._has_judged = False
        self._checked_at = 0.0
        # How the tables were captured at the last look.
        self._captured: dict[str, Captured] = {}

    def open(self, stored: Stored, syncer: Syncer) -> None:
        """Open the slot or the change log on the target; create it at a new start."""
        meta, name = self._sessions.meta, self._sessions.name
        opened, captured = self._changes.begin(stored, syncer)
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

    def judge(self, position: int, look: Callable[[], object]) -> bool:
        """Judge changes of the target; `position` is that of the source. Return whether there are more.

        Rows that differ become pending at `position`: what holds for changes of the source in flight holds for them.
        """
        self.check()
        sessions, changes = self._sessions, self._changes
        pulled = changes.pull(self.read)
        if pulled is None:
            return False
        self._note(changes.found(pulled))
        for warning in pulled.coverage.warnings:
            sessions.log(f"on the target: {warning}")
        batch = Batch(lambda relation: find_target_pair(self._tables, relation), self.read)
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
            self._store(pulled, reached, others)
        self.read = reached
        self._has_judged = self._has_judged or others > 0
        self._checker.count()
        changes.confirm(pulled)
        return pulled.changes.is_cut

    def _store(self, pulled: Pulled, position: int, others: int) -> None:
        """Store the position and, with triggers, the pods, which are deleted after the commit."""
        meta, name = self._sessions.meta, self._sessions.name
        if pulled.pods is not None:
            mark = pulled.mark
            meta.rows("put_target_pods", name=name, pods=list(pulled.pods), token=mark.token, round=mark.round)
        applied = self._changes.take_applied()
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
