"""A running validation: the steps of a round. `run` calls them in order."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from trueup.capture.log.pgoutput import KeyLost
from trueup.capture.log.slot import lsn_text
from trueup.capture.log.syncer import find_syncer
from trueup.capture.log.visible import invisible, wait_until_visible
from trueup.config.model import Node
from trueup.db.storable import as_json
from trueup.engine.work import Engine
from trueup.errors import NodeError
from trueup.proof import store
from trueup.rows.keys import KeyValues
from trueup.verbs.validate import pending
from trueup.verbs.validate.batch import UNCHECKED, Batch, Touches, without_hidden
from trueup.verbs.validate.checks import Checker, FirstCheck
from trueup.verbs.validate.history import History
from trueup.verbs.validate.judge import Mismatch
from trueup.verbs.validate.log import LogSource
from trueup.verbs.validate.look import CatalogChanged, Look, Looker
from trueup.verbs.validate.meta import Meta
from trueup.verbs.validate.owner import claim
from trueup.verbs.validate.pending import TRUNCATE, Entry, TableKey, Touch
from trueup.verbs.validate.positions import Positions
from trueup.verbs.validate.proving.certify import Marks
from trueup.verbs.validate.proving.compared import Moment
from trueup.verbs.validate.proving.scrub import Scrubber
from trueup.verbs.validate.proving.target import TargetCapture
from trueup.verbs.validate.sessions import Log, Sessions
from trueup.verbs.validate.source import ChangeSource, Coverage, Opened, Pulled
from trueup.verbs.validate.tables import Tables
from trueup.verbs.validate.triggers.tubes import TubeSource

_KEYS_PER_CHECK = 10_000
HEALTH_SECONDS = 2.0
_NO_KEY: KeyValues = ()
_COUNTED = ("insert", "update", "delete", "truncate", UNCHECKED)


class Validator:
    """The parts of a running validation. Everything that must survive a kill is in the meta database."""

    def __init__(self, name: str, nodes: tuple[Node, Node], meta: Meta, engine: Engine, log: Log) -> None:
        self.sessions = Sessions(name, nodes, meta, log)
        self.tables = Tables(self.sessions)
        self.positions = Positions(self.sessions)
        self.checker = Checker(self.sessions, self.tables, engine)
        self.scrubber = Scrubber(self.sessions, self.tables, self.checker)
        is_log = self.sessions.settings.changes == "log"
        is_both = self.sessions.settings.both_sides
        self.capture = TargetCapture(self.sessions, self.tables, self.checker, self.scrubber) if is_both else None
        self.looker = Looker(self.sessions)
        self.last_look: Look | None = None
        self.source: ChangeSource = (LogSource if is_log else TubeSource)(self.sessions, self.tables)
        # Changes that were read and wait for the syncer.
        self._pulled: Pulled | None = None
        self._started = time.monotonic()
        self._health_at = 0.0
        self._history = History(self.sessions)
        # Whether changes were judged since the source has the last mark.
        self._has_judged = False
        # Keys that were compared since the last checkpoint, and those of them that differ.
        self.compared: list[tuple[Moment, Touches, Mapping[TableKey, Mismatch]]] = []
        # The number of the last applied request to change tables.
        self._requests = 0

    # ---- open and close

    def open(self) -> None:
        """Open the sessions, plan the tables, find the syncer, and open the source of changes."""
        self._pulled = None
        self.scrubber.forget()
        sessions, positions = self.sessions, self.positions
        sessions.open()
        sessions.stored = sessions.meta.apply_requests(sessions.name)
        self._requests = sessions.stored.requests
        claim(sessions)
        self.looker.publication = sessions.stored.publication if sessions.settings.changes == "log" else ""
        self._history.open(sessions.stored)
        self.tables.find()
        with sessions.target_errors():
            targets = [route.target for route in self.tables.routes.values()]
            syncer = find_syncer(sessions.source, sessions.target, sessions.settings.syncer, targets, positions.syncer)
        positions.follow(syncer)
        self.tables.open(self.looker.take(self.tables.routes.values(), syncer))
        self.source.prepare(sessions.stored)
        self._begin_look()
        opened = self.source.open(sessions.stored)
        self._has_judged = not opened.is_new
        self._note_coverage(opened.coverage)
        if opened.is_new:
            self._start_at(opened)
        if self.capture is not None:
            self.capture.open(sessions.stored, syncer, opened.position)
        positions.read, positions.has_caught_up = opened.position, sessions.stored.has_reached
        self.checker.count()
        sessions.meta.rows("request_applied", name=sessions.name, number=self._requests)

    @property
    def has_requests(self) -> bool:
        """Return whether tables were added, removed or restarted since `open`."""
        return self.sessions.stored.requests != self._requests

    def reopen(self) -> None:
        """Close everything and open it again at the last checkpoint, with the tables as they are requested now."""
        self.sessions.log("the tables were changed: planning them again")
        self.close()
        self.open()

    def _begin_look(self) -> None:
        """Look at the catalogs after the tables were planned; store what changed since the last look."""
        look = self.looker.take(self.tables.routes.values(), self.positions.syncer)
        self.last_look = look
        unplanned = self.tables.unplanned()
        if unplanned:
            # It is in the look, so no later look would notice it.
            raise CatalogChanged(f"{unplanned[0]} was created while the tables were planned")
        for name, pair in list(self.tables.pairs.items()):
            route = self.tables.routes[name]
            if not look.is_planned(route, pair):
                raise CatalogChanged(f"{name} was replaced or altered while it was planned")
            problem = self.looker.problem(look, pair)
            if problem:
                self.tables.stop(name, problem)
        if self.sessions.stored.position is None:
            # Later, a table that is covered again continues.
            self.tables.need_any()
        self._note_identities(look)

    def look(self) -> Look:
        """Look at the catalogs; raise CatalogChanged if tables or publications are not what they were.

        Called in the transaction that decides rows, after they were read and before a position is stored: the rows were
        those of the planned tables, and all changes before the position were published. The caller sets `last_look`
        when the transaction is committed.
        """
        assert self.last_look is not None
        look = self.looker.take(self.tables.routes.values(), self.positions.syncer)
        if look.is_undecided:
            message = "a transaction that alters tables or publications may be committed and is not visible yet"
            raise NodeError(message, cure="end that transaction (pg_stat_activity)", node=self.sessions.nodes[0].name)
        if look == self.last_look:
            return look
        if look.without_files() != self.last_look.without_files():
            raise CatalogChanged(f"tables or publications were changed ({look.difference(self.last_look)})")
        self._note_identities(look)
        return look

    def _note_identities(self, look: Look) -> None:
        """Store what identifies the tables; a table that is another one, or was rewritten, must be compared."""
        sessions, position = self.sessions, self.sessions.stored.position
        stored = {row["source"]: row["identity"] for row in self.tables.rows()}
        with sessions.meta.transaction():
            for name, pair in self.tables.pairs.items():
                before, now = stored.get(name), look.identity(self.tables.routes[name], pair, self.looker.publication)
                if before == now:
                    continue
                missed = self.looker.missed(before, now) if before and position is not None else ""
                if missed:
                    sessions.log(f"{name}: changes may have been missed ({missed}); a scrub of the table is needed")
                    self.tables.void(name, missed)
                elif before and position is not None and self.looker.is_rewritten(before, now):
                    sessions.log(f"{name}: rows were changed without a message in the log; the table is compared")
                    self.tables.void(name, self.looker.rewritten(before, now))
                    self.scrubber.touch_tables([name])
                    self.checker.suspect_table(name, Touch(TRUNCATE, position, position, 0, None))
                sessions.meta.rows("identity", name=sessions.name, source=name, identity=as_json(now), missed=missed)
                if before is None or _key_types(before) != _key_types(now):
                    store.drop_blocks(sessions.meta.connection, sessions.name, name)
                    self.scrubber.forget()
                if before and before["key"] != now["key"]:
                    # Rows cannot be found by values of the former key; the scrub finds those that differ.
                    sessions.meta.rows("drop_table", pending.FILE, name=sessions.name, source=name)
                    sessions.meta.rows("resolve_table", pending.FILE, name=sessions.name, source=name)

    def _start_at(self, opened: Opened) -> None:
        """Store a new start position; a gap ends there."""
        sessions, stored = self.sessions, self.sessions.stored
        gap = as_json({**stored.gap, "to": lsn_text(opened.position)}) if stored.gap else None
        with sessions.meta.transaction():
            sessions.meta.rows("begin_at", name=sessions.name, position=opened.position, gap=gap)
            sessions.meta.rows("rebase", pending.FILE, name=sessions.name, position=opened.position)
        self.positions.forget()

    def close(self) -> None:
        """Close the sessions with source and target."""
        self.sessions.close()
        self.source.close()
        if self.capture is not None:
            self.capture.close()

    def apply_settings(self) -> str:
        """Apply settings that were changed meanwhile; return what the user requested (`stop`)."""
        requested = self.sessions.reload().wanted
        if requested != "stop":
            self.tables.apply_settings()
            self.scrubber.follow_watch()
        return requested

    # ---- read changes, batch by key, judge

    def locate(self) -> int:
        """Find changes of the target, then the positions of source and syncer; return the end of what may be read."""
        if self.capture is not None:
            self.capture.pull()
        return self.positions.locate()

    def read_changes(self, end: int) -> Pulled | None:
        """Return changes that were committed before `end` and that the syncer has applied; None if there are none."""
        self.check_health()
        start = self.positions.read
        if end <= start:
            return None
        if self._pulled is None:
            self._pulled = self.source.read(start, end)
            if self._pulled is not None:
                self._note_coverage(self._pulled.coverage)
        if self._pulled is None or self._pulled.needs > self.positions.available:
            return None
        # After an error they are read again.
        pulled, self._pulled = self._pulled, None
        return pulled

    def forget_changes(self) -> None:
        """Forget changes that wait for the syncer: they are read again from the checkpoint."""
        self._pulled = None

    def judge(self, pulled: Pulled) -> bool:
        """Judge changes; commit the results together with the position behind them. Return whether there are more."""
        positions = self.positions
        batch = Batch(self.tables.find_pair, positions.read, is_exact=pulled.pods is None)
        check: FirstCheck | None = None
        self.compared.clear()
        if self.capture is not None:
            self.capture.pull_for_check()
        try:
            with self.sessions.meta.transaction():
                for change in pulled.changes:
                    batch.add(change)
                    if batch.size >= _KEYS_PER_CHECK:
                        # A transaction may be larger than memory. A kill rolls back all parts of it together.
                        check = self._next_check(check, batch.take())
                check = self._next_check(check, batch.take())
                check = self._next_check(check, {})
                look = self.look()
                position = max(positions.read, pulled.changes.position)
                positions.has_caught_up = positions.has_caught_up or pulled.has_all
                self.checkpoint(batch, position, pulled)
        except KeyLost as error:
            self.scrubber.forget()
            self.tables.stop(error.table or "", error.message)
            self.tables.save_stopped()
            return True
        except BaseException:
            self.scrubber.forget()
            raise
        finally:
            if check is not None:
                check.result.exception()
            self.checker.count()
        self.last_look = look
        positions.advance(position)
        self.note_compared()
        self.source.confirm(pulled)
        return pulled.changes.is_cut

    def _next_check(self, check: FirstCheck | None, touches: Touches) -> FirstCheck | None:
        """Store the result of the check in progress; start the check of changed keys that are visible on the source."""
        if check is not None:
            self.checker.finish(check, self.sessions.mark)
            if check.moment is not None:
                self.compared.append((check.moment, check.touches, check.result.result()))
        if not touches:
            return None
        xids = {touch.xid for keys in touches.values() for touch in keys.values()} - {0}
        with self.sessions.source_errors():
            hidden = wait_until_visible(self.sessions.source, xids)
        self.scrubber.touch(touches)
        touches, unseen = without_hidden(touches, hidden)
        self.checker.postpone_unseen(unseen)
        moment = self.capture.moment() if self.capture is not None else None
        return self.checker.start(touches, self.positions.applied, moment)

    def note_compared(self) -> None:
        """Note which keys need no comparison of their changes on the target; called after a checkpoint is committed."""
        if self.capture is not None:
            for moment, keys, failed in self.compared:
                self.capture.compared.add(moment, keys, failed)
        self.compared.clear()

    def checkpoint(self, batch: Batch, position: int, pulled: Pulled | None = None) -> None:
        """Write the last part of a batch: truncations, counts, pods, and the position. Runs inside its transaction."""
        meta, name = self.sessions.meta, self.sessions.name
        for table, touch in batch.truncated.items():
            if table in self.tables.pairs:
                self.scrubber.touch_tables([table])
                self.checker.suspect_table(table, touch)
        lines = []
        for table, counts in batch.counts.items():
            if table not in self.tables.pairs:
                # The table was stopped during this batch: none of its changes was checked.
                counts = Counter({UNCHECKED: sum(counts.values())})
            if counts[UNCHECKED]:
                self.tables.void(table, "changes were not checked")
            lines.append({"name": name, "source": table, **{op: counts[op] for op in _COUNTED}})
        meta.many("count_table", lines)
        if pulled is not None and pulled.pods is not None:
            mark = pulled.mark
            meta.rows("put_pods", name=name, pods=list(pulled.pods), token=mark.token, round=mark.round)
        self._has_judged = self._has_judged or bool(batch.counts)
        self.positions.save(position)

    def check_health(self) -> None:
        """Run the health check of the source every few seconds; raise SlotLost if changes were lost."""
        now = time.monotonic()
        if now >= self._health_at:
            self._health_at = now + HEALTH_SECONDS
            self._history.check()
            self._leave_mark()
            self.positions.retained = self.source.check(self.positions.read, self.positions.syncer.seconds)
            self.last_look = self.look()

    def _leave_mark(self) -> None:
        if self._has_judged:
            self._has_judged = False
            self.source.leave_mark()

    def _note_coverage(self, coverage: Coverage) -> None:
        """Stop tables whose changes may be missed; after an interrupted capture, a table needs a scrub."""
        for name, problem in coverage.problems.items():
            self.tables.stop(name, problem)
        for name, capture in coverage.captures.items():
            if self.sessions.meta.rows("capture", name=self.sessions.name, source=name, capture=capture):
                self.tables.void(name, "the capture by triggers was interrupted")
        for warning in coverage.warnings:
            self.sessions.log(warning)

    # ---- check pending keys and errors again, scrub

    def check_pending(self) -> bool:
        """Check a page of pending keys again; return whether more may be due."""
        if not self.checker.pending:
            return False
        sessions, positions, page = self.sessions, self.positions, self.sessions.settings.page
        entries = pending.due(
            sessions.meta, sessions.name, now=datetime.now(timezone.utc), position=positions.decisive,
            applied=positions.available, delay=timedelta(seconds=sessions.settings.row_error_delay), limit=page,
        )  # fmt: skip
        with sessions.source_errors():
            hidden = invisible(sessions.source, {entry.xid for entry in entries} - {0})
        visible = [entry for entry in entries if entry.xid not in hidden]
        look = self.last_look
        try:
            with sessions.meta.transaction():
                unseen = [entry for entry in entries if entry.xid in hidden]
                self.checker.postpone(unseen, sessions.settings.check_interval)
                keyed = [entry for entry in visible if entry.key != _NO_KEY]
                is_past = self.positions.is_past_cutover
                self.checker.check_pending(keyed, sessions.mark, self._is_final, by_digest=is_past)
                for entry in visible:
                    if entry.key == _NO_KEY:
                        self.scrubber.scrub_truncated(entry, self._marks)
                if visible:
                    look = self.look()
        finally:
            self.checker.count()
        self.last_look = look
        return len(entries) >= page

    def _is_final(self, entry: Entry) -> bool:
        """Return whether a pending key that still differs is an error."""
        settings, positions = self.sessions.settings, self.positions
        is_late = settings.initial_delay and time.monotonic() - self._started >= settings.initial_delay
        if not (positions.has_caught_up or is_late) or self.tables.routes[entry.source].target in positions.copying:
            return False
        return entry.is_error(positions.decisive, self.checker.delay_of(entry))

    def judge_target(self) -> bool:
        """Judge changes of the target that are not of the syncer; return whether there are more."""
        if self.capture is None:
            return False
        look = self.last_look

        def take_look() -> None:
            nonlocal look
            look = self.look()

        try:
            more = self.capture.judge(self.positions.read, self.positions.available, take_look)
        except BaseException:
            self.scrubber.forget()
            raise
        self.last_look = look
        return more

    def check_errors(self) -> None:
        """Check open errors again; resolve those whose rows became equal."""
        if self.checker.errors:
            with self.sessions.meta.transaction():
                self.checker.check_errors()

    def scrub(self) -> None:
        """Scrub the next block of the tables, if the share of the time allows it."""
        # Behind the cut-over position, rows may change on both nodes: a difference means nothing there. What the syncer
        # applies of changes from before the start is not judged: a block that is hashed before would prove too much.
        if self.positions.has_passed_start and not self.positions.is_past_cutover:
            self.scrubber.scrub(self._marks)

    @property
    def _marks(self) -> Marks:
        target = self.capture.read if self.capture is not None else self._history.target_position
        return Marks(self.positions.read, target)

    # ---- save progress, release

    def save_progress(self) -> None:
        """Store the current positions."""
        self.positions.save(self.positions.read)
        self.positions.advance(self.positions.read)

    def release(self, *, at_once: bool = False) -> None:
        """Let the source discard what is in a committed checkpoint."""
        if at_once:
            self._leave_mark()
        self.source.release(self.positions.read, at_once=at_once)
        if self.capture is not None:
            self.capture.release(at_once=at_once)

    @property
    def is_done(self) -> bool:
        """Return whether everything before the cut-over position is decided."""
        return self.positions.is_past_cutover and not self.checker.pending


def _key_types(identity: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return the key columns with the OIDs of their types on the source: blocks of another key mean nothing."""
    return [(name, identity["compared"][name][0]) for name in identity["key"]]
