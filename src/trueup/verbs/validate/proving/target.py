"""Changes of the target: with `both_sides`, a second slot reads what other writers than the syncer write there.

Transactions that a subscription applies have its replication origin. They are counted and not judged: each of their
changes is one of the source, which is judged when the syncer has passed it. A transaction without that origin, without
a position of the source, or with a position that was seen before, is one of another writer. So are all, as long as
triggers of the target run for the subscription: they may write other rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from psycopg.rows import dict_row

from trueup.capture.log.pgoutput import Relation
from trueup.capture.log.publications import read_published
from trueup.capture.log.slot import flushed_position
from trueup.capture.log.syncer import Syncer
from trueup.capture.log.visible import wait_until_visible
from trueup.db.connection import one_value
from trueup.db.statements import load
from trueup.rows.keys import KeyValues
from trueup.verbs.validate.batch import UNCHECKED, Batch, Touches
from trueup.verbs.validate.checks import Checker
from trueup.verbs.validate.log import LogSource, target_side
from trueup.verbs.validate.meta import Stored
from trueup.verbs.validate.pending import TARGET, Touch
from trueup.verbs.validate.plan import Pair
from trueup.verbs.validate.proving.scrub import Scrubber
from trueup.verbs.validate.routes import Name
from trueup.verbs.validate.sessions import Sessions
from trueup.verbs.validate.source import Pulled
from trueup.verbs.validate.tables import Tables

_KEYS_PER_CHECK = 10_000
_CHECK_SECONDS = 2.0


@dataclass
class SyncerOrigins:
    """Recognizes the transactions that the syncer has applied."""

    names: frozenset[str] = frozenset()
    skipped: int = 0
    # Per origin: the position of its last transaction. They are applied in the order of the source.
    last: dict[str, int] = field(default_factory=dict)

    def is_skipped(self, name: str, position: int) -> bool:
        """Return whether a transaction is one of the syncer."""
        if name not in self.names or position <= self.last.get(name, 0):
            return False
        self.last[name] = position
        return True


class TargetLog(LogSource):
    """The slot on the target; the publication has the tables whose rows the log identifies."""

    def __init__(self, sessions: Sessions, tables: Tables) -> None:
        super().__init__(sessions, tables, target_side)
        self.origins = SyncerOrigins()
        # Tables whose changes on the target are not seen, and why.
        self.problems: dict[str, str] = {}

    def read(self, start: int, end: int) -> Pulled | None:
        """Return the changes of the target that were committed in `[start, end)`, without those of the syncer."""
        changes = self._reader.changes(
            start, end, self._places, max_messages=self._sessions.settings.batch, origins=self.origins
        )
        return Pulled(changes, needs=start)

    def find_pair(self, relation: Relation) -> tuple[str, Pair | None]:
        """Return the name and the pair of a table of the target; no pair if it is not captured."""
        name = self._by_oid().get(relation.id, "")
        return name, self._tables.pairs.get(name)

    def _by_oid(self) -> dict[int, str]:
        return {pair.target_oid: name for name, pair in self._tables.pairs.items()}

    def _places(self, relation: Relation) -> tuple[int, ...] | None:
        _, pair = self.find_pair(relation)
        if pair is None:
            return None
        missing = [name for name in pair.target.key_names if name not in relation.columns]
        # A change whose key is not known counts as one that was not checked.
        return () if missing else tuple(relation.columns.index(name) for name in pair.target.key_names)

    def _published(self) -> list[Name]:
        self.problems = {name: problem for name, pair in self._tables.pairs.items() if (problem := self._problem(pair))}
        return [self._tables.routes[name].target for name in self._tables.pairs if name not in self.problems]

    def _problem(self, pair: Pair) -> str:
        """Return why the log of the target does not identify the rows of a table; "" if it does.

        The server refuses to update a published table whose rows the log does not identify.
        """
        query = load("trueup.verbs.validate.proving", "target.sql")["members"]
        with self._reader.connection.cursor(row_factory=dict_row) as cursor:
            members = cursor.execute(query, {"oid": pair.target_oid}).fetchall()
        for member in members:
            if member["persistence"] != "p":
                return f"{member['name']} on the target is unlogged"
            if member["heir"]:
                return f"{member['heir']} inherits from {member['name']} on the target"
            known = None if member["identity"] == "f" else member["columns"] or ()
            if known is not None and not {*pair.target.key_names} <= {*known}:
                return f"the replica identity of {member['name']} on the target lacks the key"
        return ""

    def versions(self) -> dict[str, str]:
        """Return per table what the publication publishes of it: another text after each alteration; "": not all."""
        oids = self._by_oid()
        publication = self._reader.publication
        published = read_published(self._sessions.target, [publication], oids)
        return {
            name: "" if (found := published.get((publication, oid))) is None
            or found.problem(self._tables.pairs[name].target.key_names) else found.version
            for oid, name in oids.items()
            if name not in self.problems
        }  # fmt: skip


class TargetCapture:
    """Reads the changes of the target and judges those of others than the syncer."""

    def __init__(self, sessions: Sessions, tables: Tables, checker: Checker, scrubber: Scrubber) -> None:
        self._sessions = sessions
        self._tables = tables
        self._checker = checker
        self._scrubber = scrubber
        self._log = TargetLog(sessions, tables)
        self.read = 0
        self._has_judged = False
        self._checked_at = 0.0
        self._versions: dict[str, str] = {}
        self._origin_names: frozenset[str] = frozenset()
        # Whether no trigger of the target could write in transactions of the syncer, when it was asked last.
        self._is_quiet = False

    def open(self, stored: Stored, syncer: Syncer) -> None:
        """Open the slot on the target; create it and its publication at a new start."""
        meta, name, log = self._sessions.meta, self._sessions.name, self._log
        before = {row["source"]: row["target_capture"] for row in self._tables.rows()}
        log.prepare(stored)
        opened = log.open(stored)
        with self._sessions.target_errors():
            self._versions = log.versions()
            self._is_quiet = False
        with meta.transaction():
            if opened.is_new:
                meta.rows("target_begin", name=name, position=opened.position)
            for table in self._tables.pairs:
                version = self._versions.get(table, "")
                problem = log.problems.get(table, "")
                if not opened.is_new and before.get(table) not in (None, version):
                    self._tables.void(table, "the publication on the target was altered")
                meta.rows("target_capture", name=name, source=table, capture=version, problem=problem)
        self.read, self._has_judged = opened.position, not opened.is_new
        names = [f"pg_{oid}" for oid in syncer.oids] if syncer.kind == "subscription" else []
        self._origin_names = frozenset(names)
        log.origins = SyncerOrigins(last=log.origins.last)

    def close(self) -> None:
        """Close the session."""
        self._log.close()

    def check(self) -> None:
        """Health check; raise SlotLost if the slot is lost."""
        if time.monotonic() < self._checked_at + _CHECK_SECONDS:
            return
        self._checked_at = time.monotonic()
        if self._has_judged:
            self._has_judged = False
            self._log.leave_mark()
        self._log.check(self.read, 0.0)

    def release(self, *, at_once: bool = False) -> None:
        """Let the target discard what is in a committed checkpoint."""
        if at_once and self._has_judged:
            self._has_judged = False
            self._log.leave_mark()
        self._log.release(self.read, at_once=at_once)

    def judge(self, position: int, look: Callable[[], object]) -> bool:
        """Judge changes of the target; `position` is that of the source. Return whether there are more.

        Rows that differ become pending at `position`: what holds for changes of the source in flight holds for them.
        """
        self.check()
        sessions, log = self._sessions, self._log
        with sessions.target_errors():
            end = flushed_position(sessions.target)
            if end <= self.read:
                return False
            was_quiet, self._is_quiet = self._is_quiet, not self._triggers_run()
            log.origins.names = self._origin_names if was_quiet and self._is_quiet else frozenset()
        skipped = log.origins.skipped
        pulled = log.read(self.read, end)
        assert pulled is not None
        batch = Batch(_FindPair(log), self.read)
        with sessions.meta.transaction():
            for change in pulled.changes:
                batch.add(change)
                if batch.size >= _KEYS_PER_CHECK and not self._check(batch.take(), position):
                    return False
            if not self._check(batch.take(), position):
                return False
            self._truncated(batch, position)
            look()
            self._note_versions()
            others = sum(sum(counts.values()) for counts in batch.counts.values())
            reached = max(self.read, pulled.changes.position)
            sessions.meta.rows(
                "target_progress", name=sessions.name, position=reached, others=others,
                applied=log.origins.skipped - skipped,
            )  # fmt: skip
        self.read = reached
        self._has_judged = self._has_judged or others > 0
        self._checker.count()
        return pulled.changes.is_cut

    def _triggers_run(self) -> bool:
        query = load("trueup.verbs.validate.proving", "target.sql")["may_write_more"]
        return bool(one_value(self._sessions.target.execute(query)))

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

    def _note_versions(self) -> None:
        """Void the certificates of tables whose publication on the target was altered since the last read."""
        with self._sessions.target_errors():
            versions = self._log.versions()
        meta, name = self._sessions.meta, self._sessions.name
        for table, version in versions.items():
            if version != self._versions.get(table):
                self._tables.void(table, "the publication on the target was altered")
                meta.rows("target_capture", name=name, source=table, capture=version, problem="")
        self._versions = versions


class _FindPair:
    """Finds the pair of a table of the target; keys are converted as the target prints them."""

    def __init__(self, log: TargetLog) -> None:
        self._log = log

    def __call__(self, relation: Relation) -> tuple[str, Pair | None]:
        name, pair = self._log.find_pair(relation)
        return name, pair.of_target() if pair is not None else None
