"""Looks at keys on both sides, and writes down what follows: proven, pending, or an error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from trueup.config.model import Node
from trueup.db.connection import Connection, one_row
from trueup.engine.work import Engine, Failure, Tasks
from trueup.errors import QueryError, TrueupError
from trueup.rows.keys import KeyValues
from trueup.verbs.validate import findings, pending
from trueup.verbs.validate.batch import Touches
from trueup.verbs.validate.judge import Check, Judged, Mismatch, judge, tasks_of
from trueup.verbs.validate.meta import Meta
from trueup.verbs.validate.pending import Entry
from trueup.verbs.validate.plan import Pair
from trueup.verbs.validate.settings import Settings

Place = tuple[str, KeyValues]
# A statement failed because the table is not what it was: columns, tables, types.
_ALTERED = ("42703", "42P01", "42804", "42883", "42704")
_VISIBLE_SECONDS = 1.0
_MOST_A_TASK = 5_000


class Altered(TrueupError):
    """A table was altered on one of the nodes: it must be planned again."""


@dataclass(frozen=True)
class Look:
    """A first look that is under way: at which keys, which of them are pending already, and what will be found."""

    touches: Touches
    known: Mapping[Place, Entry]
    judging: Future[dict[Place, Mismatch]]


class Lookout:
    """The looking part of a validation: engine, nodes, rates; all that it decides goes to the meta database."""

    def __init__(
        self, engine: Engine, nodes: tuple[Node, Node], meta: Meta, settings: Settings, *, application: str
    ) -> None:
        self.engine = engine
        self.nodes = nodes
        self.meta = meta
        self.settings = settings
        self.application = application
        self.pending = 0
        self.errors = 0
        self.looked = 0
        self._free_at = 0.0
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="trueup-look")

    def count(self) -> None:
        """How much there is in the meta database: where there is nothing, nothing needs to be asked."""
        self.pending = pending.count(self.meta, self.settings.name)
        self.errors = findings.open_count(self.meta, self.settings.name)

    @property
    def _delay(self) -> timedelta:
        return timedelta(seconds=self.settings.row_error_delay)

    def judge_all(self, pairs: Mapping[str, Pair], keys: Mapping[str, Sequence[KeyValues]]) -> dict[Place, Mismatch]:
        """The keys that differ; all others are the same on both sides."""
        tasks = Tasks(self._tasks(pairs, keys))
        return collected(self.engine.run(judge, tasks))

    def _tasks(self, pairs: Mapping[str, Pair], keys: Mapping[str, Sequence[KeyValues]]) -> Iterator[Check]:
        total = sum(len(each) for each in keys.values())
        size = max(1, min(_MOST_A_TASK, -(-total // max(1, self.engine.slots))))
        for name, wanted in keys.items():
            if name not in pairs:
                continue
            for task in tasks_of(
                pairs[name], wanted, size=size, nodes=self.nodes, application=self.application,
                timeout=self.settings.timeout, tolerance=self.settings.float_tolerance,
            ):  # fmt: skip
                self._wait_for_rate(len(task.keys))
                self.looked += len(task.keys)
                yield task

    def _wait_for_rate(self, rows: int) -> None:
        if self.settings.max_rows_per_second:
            now = time.monotonic()
            if self._free_at > now:
                time.sleep(self._free_at - now)
            self._free_at = max(now, self._free_at) + rows / self.settings.max_rows_per_second

    def begin(self, pairs: Mapping[str, Pair], touches: Touches, syncer: int) -> Look:
        """Begin a first look at keys that were just changed, beside what the caller does meanwhile.

        Of a key that differed at a look before, the source had a newer row then: before the syncer has passed the mark
        of that look, another one would only find the same. So a syncer that lags costs no further reads.
        """
        known = self._known(pairs, touches)
        early = {place: entry for place, entry in known.items() if (entry.suspect_lsn or 0) > syncer}
        if early:
            self.put_off([entry.touched(touches[name][key]) for (name, key), entry in early.items()], 0)
            touches = {
                name: {key: touch for key, touch in keys.items() if (name, key) not in early}
                for name, keys in touches.items()
            }
        keys = {name: list(keys) for name, keys in touches.items()}
        judging = self._beside.submit(self.judge_all, dict(pairs), keys)
        return Look(touches, {place: known[place] for place in known if place not in early}, judging)

    def finish(self, pairs: Mapping[str, Pair], look: Look, mark: Callable[[], int]) -> None:
        """Most keys are proven at once, the others are pending from now on."""
        self.record(pairs, look.touches, look.judging.result(), mark, look.known)

    def close(self) -> None:
        """Wait for what is under way."""
        self._beside.shutdown(wait=True, cancel_futures=True)

    def _known(self, pairs: Mapping[str, Pair], touches: Touches) -> dict[Place, Entry]:
        places = [(table, key) for table, keys in touches.items() if table in pairs for key in keys]
        return pending.known(self.meta, self.settings.name, places) if self.pending and places else {}

    def record(
        self,
        pairs: Mapping[str, Pair],
        touches: Touches,
        failed: Mapping[Place, Mismatch],
        mark: Callable[[], int],
        known: Mapping[Place, Entry] | None = None,
    ) -> None:
        """Write down what a first look found; `known` are those of the keys that are pending already."""
        name, now = self.settings.name, _now()
        places = [(table, key) for table, keys in touches.items() if table in pairs for key in keys]
        known = self._known(pairs, touches) if known is None else known
        position = mark() if failed else 0
        later: list[Entry] = []
        for place, found in failed.items():
            touch = touches[place[0]].get(place[1]) or next(iter(touches[place[0]].values()))
            entry = known[place].touched(touch) if place in known else Entry.of(*place, touch)
            after = entry.failed(found, position, now, self._delay)
            if after is not None:
                later.append(after)
        waiting = {(entry.source, entry.key) for entry in later}
        pending.put(self.meta, name, later, due_at=now + timedelta(seconds=self.settings.check_interval))
        pending.drop(self.meta, name, [place for place in known if place not in waiting])
        if self.errors:
            findings.resolve_keys(self.meta, name, [place for place in places if place not in failed], now)
        self.pending += len(waiting - set(known))

    def put_off(self, entries: Sequence[Entry], seconds: float) -> None:
        """Look at these later."""
        pending.put(self.meta, self.settings.name, entries, due_at=_now() + timedelta(seconds=seconds))

    def again(
        self,
        pairs: Mapping[str, Pair],
        entries: Sequence[Entry],
        mark: Callable[[], int],
        *,
        is_final: Callable[[Entry], bool],
    ) -> None:
        """A further look at pending keys; those of which `is_final` are errors if they differ still."""
        name, now = self.settings.name, _now()
        keys: dict[str, list[KeyValues]] = {}
        for entry in entries:
            keys.setdefault(entry.source, []).append(entry.key)
        failed = self.judge_all(pairs, keys)
        position = mark() if failed else 0
        decided: list[Place] = []
        later: list[Entry] = []
        for entry in entries:
            found = failed.get((entry.source, entry.key))
            after = None if found is None else entry.failed(found, position, now, self._delay)
            if found is not None and after is not None and is_final(entry):
                findings.add(self.meta, name, pairs[entry.source].target_name, entry, found, now)
                self.errors += 1
                after = None
            if after is None:
                decided.append((entry.source, entry.key))
            else:
                later.append(after)
        pending.put(self.meta, name, later, due_at=now + timedelta(seconds=self.settings.check_interval))
        pending.drop(self.meta, name, decided)
        if self.errors:
            findings.resolve_keys(self.meta, name, [place for place in decided if place not in failed], now)

    def errors_again(self, pairs: Mapping[str, Pair]) -> None:
        """Open errors resolve by themselves when the row became equal."""
        if not self.errors:
            return
        name, now = self.settings.name, _now()
        wait = timedelta(seconds=self.settings.check_interval)
        places = findings.to_look_at(self.meta, name, before=now - wait, most=self.settings.page)
        keys: dict[str, list[KeyValues]] = {}
        for table, key in places:
            if table in pairs:
                keys.setdefault(table, []).append(key)
        if not keys:
            return
        failed = self.judge_all(pairs, keys)
        for (table, _), found in failed.items():
            findings.still(self.meta, name, table, found, now)
        findings.resolve_keys(
            self.meta, name, [(table, key) for table in keys for key in keys[table] if (table, key) not in failed], now
        )


def collected(results: Iterator[Any]) -> dict[Place, Mismatch]:
    """The mismatches out of the tasks' results; a task that failed raises."""
    failed: dict[Place, Mismatch] = {}
    for result in results:
        if isinstance(result, Failure):
            raise of_table(result.error, result.task.pair.name)
        if isinstance(result, Judged):
            failed.update({(result.table, found.key): found for found in result.failed})
    return failed


def of_table(error: TrueupError, table: str) -> TrueupError:
    """The error of a statement, with the table it was about; one that says that the table was altered is told apart."""
    if isinstance(error, QueryError) and error.sqlstate in _ALTERED:
        return Altered(error.message, node=error.node, table=table)
    error.table = error.table or table
    return error


def invisible(connection: Connection, xids: set[int]) -> set[int]:
    """Transactions that are committed in the log, and that new snapshots do not see yet.

    Between its commit record and the moment when others see it, a transaction may wait for a synchronous standby. A row
    that is read meanwhile is the old one, and an equal old row on the target would prove nothing.
    """
    if not xids:
        return set()
    row = one_row(connection.execute("SELECT pg_current_snapshot()::text"))
    _, top, running = str(row[0]).split(":")
    end = int(top) & 0xFFFFFFFF
    open_ones = {int(each) & 0xFFFFFFFF for each in running.split(",") if each}
    # Numbers go round: later than `end` is what lies within the next half of the circle.
    return {xid for xid in xids if xid in open_ones or (xid - end) & 0xFFFFFFFF < 0x80000000}


def wait_until_visible(connection: Connection, xids: set[int]) -> set[int]:
    """Wait a moment for them; gives those that are still not seen."""
    give_up = time.monotonic() + _VISIBLE_SECONDS
    while (hidden := invisible(connection, xids)) and time.monotonic() < give_up:
        time.sleep(0.02)
    return hidden


def without_hidden(batch: Touches, hidden: set[int]) -> tuple[Touches, list[Entry]]:
    """The keys that can be looked at, and the others as pending entries that were never looked at."""
    if not hidden:
        return batch, []
    kept: Touches = {}
    later: list[Entry] = []
    for table, keys in batch.items():
        for key, touch in keys.items():
            if touch.xid in hidden:
                later.append(Entry.of(table, key, touch))
            else:
                kept.setdefault(table, {})[key] = touch
    return kept, later


def _now() -> datetime:
    return datetime.now(timezone.utc)
