"""One running validation: its sessions, and the steps of a round. `run` says in which order."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, Protocol

import psycopg

from trueup.capture.log import slot
from trueup.capture.log.pgoutput import Change, Commit, KeyLost
from trueup.config.model import Node
from trueup.db.node import connect, error_from_server
from trueup.engine.work import Engine
from trueup.errors import CheckFailed, TrueupError
from trueup.rows.keys import KeyValues
from trueup.verbs.validate import pending
from trueup.verbs.validate.batch import UNCHECKED, Batch, Touches
from trueup.verbs.validate.log import Log
from trueup.verbs.validate.look import Look, Lookout, invisible, wait_until_visible, without_hidden
from trueup.verbs.validate.meta import Meta, Stored
from trueup.verbs.validate.pending import SWEEP, TRUNCATE, Entry, Touch
from trueup.verbs.validate.settings import Settings
from trueup.verbs.validate.sweep import Pace, Swept, sweep_block
from trueup.verbs.validate.syncer import Syncer, copying, find_syncer
from trueup.verbs.validate.tables import Say, Tables

_CHUNK = 10_000
_LOOK_SECONDS = 2.0
_NO_KEY: KeyValues = ()
_COUNTED = ("insert", "update", "delete", "truncate", UNCHECKED)
MARK = "trueup"


class Changes(Protocol):
    """Where changes come from."""

    def open(self) -> int:
        """Be ready; gives the position to go on from."""
        ...

    def close(self) -> None:
        """End its sessions."""
        ...

    def look(self) -> None:
        """Is all well with it? Asked every few seconds."""
        ...

    def read(self, upto: int) -> bool:
        """Judge what was committed before `upto`; whether there may be more."""
        ...

    def let_go(self, *, at_once: bool) -> None:
        """Forget what is checkpointed."""
        ...


class Validator:
    """All of a validation that runs; what it knows beyond the meta database can be lost at any moment."""

    def __init__(self, name: str, nodes: tuple[Node, Node], meta: Meta, engine: Engine, say: Say) -> None:
        self.name = name
        self.nodes = nodes
        self.meta = meta
        self.say = say
        self.application = f"trueup validate {name}"
        self.stored: Stored = meta.need(name)
        self.settings: Settings = self.stored.settings
        self.tables = Tables(name, say)
        self.looks = Lookout(engine, nodes, meta, self.settings, application=self.application)
        self.changes: Changes = changes_of(self)
        self.source: Any = None
        self.target: Any = None
        self.syncer = Syncer("lag")
        # How far the syncer is, the source's log is flushed, and the changes are read.
        self.place = self.flushed = self.position = 0
        self.retained: int | None = None
        self.has_reached = False
        self._copying: set[tuple[str, str]] = set()
        self._pace = Pace(self.settings.sweep)
        self._sweep_at = 0
        self._began = time.monotonic()
        self._seen: deque[tuple[float, int]] = deque()
        self._look_at = 0.0

    # ---- beginning and end

    def open(self) -> None:
        """Sessions, tables, the slot, and where to go on."""
        from trueup.db.reader import allow

        allow(self.application)
        self.source = self.session(self.nodes[0], read_only=False)
        self.target = self.session(self.nodes[1], read_only=True)
        self.stored = self.meta.need(self.name)
        self.settings = self.looks.settings = self.stored.settings
        self._pace.share = self.settings.sweep
        with of_node(self.nodes[0]):
            if self.source.execute("SELECT pg_is_in_recovery()").fetchone()[0]:
                raise CheckFailed(["it is a standby"], cure="validate from its primary", node=self.nodes[0].name)
            self.tables.open(self.source, self.target, self.meta, self.settings)
        with of_node(self.nodes[1]):
            targets = [route.target for route in self.tables.routes.values()]
            self.syncer = find_syncer(self.source, self.target, self.settings.syncer, targets)
        with of_node(self.nodes[0]):
            self.position = self.changes.open()
        self.has_reached = self.stored.has_reached
        self.looks.count()

    def close(self) -> None:
        """End the sessions."""
        from trueup.db.reader import stop_all

        stop_all(self.application)
        self.changes.close()
        for connection in (self.source, self.target):
            if connection is not None:
                connection.close()

    def session(self, node: Node, *, read_only: bool) -> Any:
        """A session of this validation."""
        connection = connect(node, application=self.application, read_only=read_only)
        # Our marks must not wait for a synchronous standby.
        connection.execute("SET statement_timeout = 0; SET synchronous_commit = local")
        return connection

    def refresh(self) -> str:
        """What others asked of us meanwhile: new settings are taken, an end is given back."""
        stored = self.meta.need(self.name)
        if stored.settings != self.settings:
            self.settings = self.looks.settings = stored.settings
            self._pace.share = stored.settings.sweep
            with of_node(self.nodes[0]):
                self.tables.use(stored.settings)
        return stored.wanted

    # ---- reading changes

    def look_around(self) -> int:
        """Where the source and the syncer are; gives how far may be read."""
        with of_node(self.nodes[0]):
            self.flushed = slot.positions(self.source).flushed
        with of_node(self.nodes[1]):
            self.place = max(self.place, self.syncer.place(self.source, self.target))
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            with of_node(self.nodes[0]):
                self.changes.look()
            if self.syncer.kind == "subscription":
                with of_node(self.nodes[1]):
                    self._copying = copying(self.target)
        self._seen.append((now, self.flushed))
        upto = min(self.place, self.flushed)
        return min(upto, slot.lsn_number(self.settings.cutover)) if self.settings.cutover else upto

    def read(self, upto: int) -> bool:
        """Read and judge what was committed before `upto`; whether there may be more."""
        with of_node(self.nodes[0]):
            return self.changes.read(upto)

    def take(self, changes: Iterable[Change | Commit], behind: Callable[[int], int], **also: Any) -> None:
        """Judge changes, and commit what follows together with the position behind them."""
        batch = Batch(self.tables.pairs, self.position)
        look: Look | None = None
        try:
            with self.meta.transaction():
                for change in changes:
                    batch.add(change)
                    if batch.size >= _CHUNK:
                        # One transaction may be larger than memory; all of this is undone together if we die.
                        look = self._look_on(look, batch.take())
                look = self._look_on(look, batch.take())
                self._look_on(look, {})
                self.checkpoint(batch, max(self.position, batch.end, behind(batch.end)), **also)
        except KeyLost as error:
            self.tables.stop(error.table or "", error.message)
        finally:
            if look is not None:
                look.judging.exception()
            self.looks.count()

    def checkpoint(self, batch: Batch, position: int, **also: Any) -> None:
        """The last part of a batch's transaction: what is not by key, the counts, and the position."""
        for name, touch in batch.truncated.items():
            if name in self.tables.pairs:
                entry = Entry(name, _NO_KEY, TRUNCATE, touch.first_lsn, touch.last_lsn, touch.xid, touch.at)
                self.looks.put_off([entry], 0)
        lines = []
        for table, counts in batch.counts.items():
            if table not in self.tables.pairs:
                # It was stopped on the way: nothing of it was looked at for good.
                counts = Counter({UNCHECKED: sum(counts.values())})
            lines.append({"name": self.name, "source": table, **{op: counts[op] for op in _COUNTED}})
        self.meta.many("count_table", lines)
        for block, values in also.items():
            self.meta.rows(block, name=self.name, **values)
        before, self.position = self.position, position
        try:
            self.progress()
        except BaseException:
            self.position = before
            raise

    def first_look(self, touches: Touches) -> None:
        """Judge keys that were just changed."""
        self._look_on(self._look_on(None, touches), {})

    def _look_on(self, look: Look | None, touches: Touches) -> Look | None:
        """End the look before, and begin one at keys that were just changed, as soon as their transactions are seen."""
        if look is not None:
            self.looks.finish(self.tables.pairs, look, self.mark)
        if not touches:
            return None
        xids = {touch.xid for keys in touches.values() for touch in keys.values()} - {0}
        with of_node(self.nodes[0]):
            hidden = wait_until_visible(self.source, xids)
        touches, later = without_hidden(touches, hidden)
        self.look_later(later)
        return self.looks.begin(self.tables.pairs, touches, self.place)

    def look_later(self, entries: Sequence[Entry]) -> None:
        """Keys that cannot be judged yet: pending, never looked at."""
        if entries:
            known = pending.known(self.meta, self.name, [(entry.source, entry.key) for entry in entries])
            merged = [
                known[e.source, e.key].touched(e.as_touch()) if (e.source, e.key) in known else e for e in entries
            ]
            self.looks.put_off(merged, self.settings.check_interval)

    def mark(self) -> int:
        """A position behind all that was visible on the source until now, with the log flushed up to it."""
        with of_node(self.nodes[0]):
            row = self.source.execute("SELECT (pg_logical_emit_message(true, %s, '') - '0/0')::int8", [MARK]).fetchone()
        return int(row[0])

    # ---- looking again

    def again(self) -> bool:
        """Look again at a page of pending keys; whether there may be more that are due."""
        if not self.looks.pending:
            return False
        entries = pending.due(self.meta, self.name, now=_now(), position=self.position, most=self.settings.page)
        with of_node(self.nodes[0]):
            hidden = invisible(self.source, {entry.xid for entry in entries} - {0})
        ready = [entry for entry in entries if entry.xid not in hidden]
        try:
            with self.meta.transaction():
                self.looks.put_off([entry for entry in entries if entry.xid in hidden], self.settings.check_interval)
                keyed = [entry for entry in ready if entry.key != _NO_KEY]
                self.looks.again(self.tables.pairs, keyed, self.mark, is_final=self._is_final)
                for entry in ready:
                    if entry.key == _NO_KEY:
                        self._sweep_truncated(entry)
        finally:
            self.looks.count()
        return len(entries) >= self.settings.page

    def _is_final(self, entry: Entry) -> bool:
        delay = timedelta(seconds=self.settings.row_error_delay)
        late = self.settings.initial_delay and time.monotonic() - self._began >= self.settings.initial_delay
        if not (self.has_reached or late) or self.tables.routes[entry.source].target in self._copying:
            return False
        return entry.is_error(self.position, delay)

    def errors_again(self) -> None:
        """Let errors resolve by themselves."""
        if self.looks.errors:
            with self.meta.transaction():
                self.looks.errors_again(self.tables.pairs)

    # ---- sweeps

    def sweep(self) -> None:
        """The next block of the rolling sweep, if its share of time allows."""
        if self._pace.is_due() and self.tables.pairs:
            names = sorted(self.tables.pairs)
            name = names[self._sweep_at % len(names)]
            self._pace.timed(lambda: self._sweep_one(name))

    def _sweep_one(self, name: str) -> None:
        row = next(row for row in self.meta.rows("tables", name=self.name) if row["source"] == name)
        # A pass began when its first block was begun, not when it was done: others build on what it saw.
        began = _now()
        swept = self._block(name, tuple(row["sweep_key"]) if row["sweep_key"] else None)
        with self.meta.transaction():
            self._suspect(name, swept.differing, Touch(SWEEP, self.position, self.position, 0, None))
            self.meta.rows(
                "sweep", name=self.name, source=name, key=list(swept.next) if swept.next else None, rows=swept.rows,
                passes=0 if swept.next else 1, now=began,
            )  # fmt: skip
            if swept.next is None:
                self.meta.rows("gap_closed", name=self.name)
                self._sweep_at += 1
        self.looks.pending += len(swept.differing)

    def _sweep_truncated(self, entry: Entry) -> None:
        """Rows that should be gone are named one by one; when all blocks were looked at, the truncation is decided."""
        start: KeyValues | None = None
        while entry.source in self.tables.pairs:
            swept = self._block(entry.source, start)
            self._suspect(entry.source, swept.differing, entry.as_touch("delete"))
            start = swept.next
            if start is None:
                break
        pending.drop(self.meta, self.name, [(entry.source, entry.key)])

    def _block(self, name: str, start: KeyValues | None) -> Swept:
        return sweep_block(
            self.tables.pairs[name], self.nodes, start, rows=self.settings.sweep_rows, application=self.application,
            timeout=self.settings.timeout,
        )  # fmt: skip

    def _suspect(self, name: str, keys: Sequence[KeyValues], touch: Touch) -> None:
        """Keys that a sweep found to differ: looked at like changed ones, from now on."""
        known = pending.known(self.meta, self.name, [(name, key) for key in keys]) if keys else {}
        self.looks.put_off([Entry.of(name, key, touch) for key in keys if (name, key) not in known], 0)

    # ---- telling

    def progress(self) -> None:
        """The numbers that everybody may see, and with them the position: part of every checkpoint."""
        self.has_reached = self.has_reached or self.position >= self.place > 0
        self.meta.rows(
            "progress", name=self.name, position=self.position, syncer=self.place, upstream=self.flushed,
            lag=self._lag_seconds(), retained=self.retained, reached=self.has_reached,
        )  # fmt: skip

    def _lag_seconds(self) -> float:
        """Since when there is something on the source that was not read."""
        while self._seen and self._seen[0][1] <= self.position:
            self._seen.popleft()
        return time.monotonic() - self._seen[0][0] if self._seen else 0.0

    def let_go(self, *, at_once: bool = False) -> None:
        """Let the source forget what is checkpointed."""
        with of_node(self.nodes[0]):
            self.changes.let_go(at_once=at_once)

    def is_past_cutover(self) -> bool:
        """Whether all up to the cut-over position is decided."""
        if not self.settings.cutover or self.looks.pending:
            return False
        return self.position >= slot.lsn_number(self.settings.cutover)


def changes_of(validator: Validator) -> Changes:
    """The log, a tube, or a change log of its own."""
    if validator.settings.changes != "log":
        from trueup.verbs.validate.tubes import TubeChanges

        return TubeChanges(validator)
    return Log(validator)


class of_node:
    """Errors of the driver as ours, with the node's name."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, psycopg.Error) and not isinstance(error, TrueupError):
            raise error_from_server(error, self.node) from None


def _now() -> datetime:
    return datetime.now(timezone.utc)
