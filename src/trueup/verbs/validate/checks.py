"""Checks keys on both nodes and stores the result: proven, pending, or an error."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from trueup.engine.work import Engine, Failure, Tasks
from trueup.errors import QueryError, TrueupError
from trueup.rows.keys import KeyValues
from trueup.verbs.validate import pending, row_errors
from trueup.verbs.validate.batch import Touches
from trueup.verbs.validate.judge import Check, Judged, Mismatch, judge, tasks_of
from trueup.verbs.validate.pending import TARGET, TRUNCATE, Entry, TableKey, Touch
from trueup.verbs.validate.plan import Pair
from trueup.verbs.validate.proving.compared import Moment
from trueup.verbs.validate.sessions import Sessions
from trueup.verbs.validate.tables import Tables

# Classes of SQLSTATEs that may pass: connection, resources, operator intervention, serialization. And a lock or slot in
# use, a file that is not available.
_PASSING_CLASSES = ("08", "53", "57", "40")
_PASSING = ("55P03", "55006", "58P01")
MAX_KEYS_PER_TASK = 5_000
# The share of the time for further checks of known errors: thousands of them must not hold back everything else.
_ERRORS_SHARE = 0.25


class Altered(TrueupError):
    """A statement that reads a table fails: it was altered on one of the nodes, and must be planned again."""


@dataclass(frozen=True)
class FirstCheck:
    """A first check in progress: its keys, those of them that are already pending, and the future result."""

    touches: Touches
    known: Mapping[TableKey, Entry]
    result: Future[dict[TableKey, Mismatch]]
    # Before the rows were read on the target; None: not needed.
    moment: Moment | None


class Checker:
    """Checks keys by tasks of the engine and writes the results to the meta database."""

    def __init__(self, sessions: Sessions, tables: Tables, engine: Engine) -> None:
        self._sessions = sessions
        self._tables = tables
        self._engine = engine
        # Numbers of pending keys and of open and ignored errors: at 0, the meta database is not asked.
        self.pending = 0
        self.errors = 0
        self._free_at = 0.0
        self._errors_at = 0.0
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="trueup-check")

    def count(self) -> None:
        """Read the numbers of pending keys and open errors."""
        self.pending = pending.count(self._sessions.meta, self._sessions.name)
        self.errors = row_errors.open_count(self._sessions.meta, self._sessions.name)

    def close(self) -> None:
        """Wait for the check in progress."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    # ---- comparing

    def compare(self, pairs: Mapping[str, Pair], keys: Mapping[str, Sequence[KeyValues]]) -> dict[TableKey, Mismatch]:
        """Return the keys that differ; all other keys are equal on both nodes."""
        return collected(self._engine.run(judge, Tasks(self._tasks(pairs, keys))))

    def _tasks(self, pairs: Mapping[str, Pair], keys: Mapping[str, Sequence[KeyValues]]) -> Iterator[Check]:
        sessions, settings = self._sessions, self._sessions.settings
        total = sum(len(of_table) for of_table in keys.values())
        size = max(1, min(MAX_KEYS_PER_TASK, -(-total // max(1, self._engine.slots))))
        for name, of_table in keys.items():
            for task in tasks_of(
                pairs[name], of_table, size=size, nodes=sessions.servers, application=sessions.application,
                timeout=settings.timeout, tolerance=settings.float_tolerance,
            ):  # fmt: skip
                self._limit_rate(len(task.keys))
                yield task

    def _limit_rate(self, rows: int) -> None:
        limit = self._sessions.settings.max_rows_per_second
        if limit:
            now = time.monotonic()
            if self._free_at > now:
                time.sleep(self._free_at - now)
            self._free_at = max(now, self._free_at) + rows / limit

    # ---- the first check of changed keys

    def start(self, touches: Touches, applied: int, moment: Moment | None = None) -> FirstCheck:
        """Start the first check of changed keys on another thread.

        If a pending key differed at an earlier check, the source had a newer row then. Until the syncer has passed the
        mark of that check, another check would find the same, so the key is postponed: a lagging syncer costs no reads.
        """
        pairs = dict(self._tables.pairs)
        touches = {name: keys for name, keys in touches.items() if name in pairs}
        known = self._known(touches)
        early = {place: entry for place, entry in known.items() if (entry.suspect_lsn or 0) > applied}
        if early:
            self.postpone([entry.touched(touches[name][key]) for (name, key), entry in early.items()], 0)
            touches = {
                name: {key: touch for key, touch in keys.items() if (name, key) not in early}
                for name, keys in touches.items()
            }
        keys = {name: list(keys) for name, keys in touches.items()}
        result = self._executor.submit(self.compare, pairs, keys)
        known = {place: known[place] for place in known if place not in early}
        return FirstCheck(touches, known, result, moment)

    def finish(self, check: FirstCheck, mark: Callable[[], int]) -> None:
        """Store the result of a first check."""
        self.record(check.touches, check.result.result(), mark, check.known)

    def record(
        self,
        touches: Touches,
        failed: Mapping[TableKey, Mismatch],
        mark: Callable[[], int],
        known: Mapping[TableKey, Entry] | None = None,
    ) -> None:
        """Store the result of a first check: keys that differ are pending, the others proven.

        `known` contains the keys that were already pending; None: read them.
        """
        meta, name, now = self._sessions.meta, self._sessions.name, _now()
        # A table may have been stopped since the check was started: its rows are not proven, and not pending.
        touches = {table: keys for table, keys in touches.items() if table in self._tables.pairs}
        failed = {place: mismatch for place, mismatch in failed.items() if place[0] in touches}
        known = self._known(touches) if known is None else known
        position = mark() if failed else 0
        entries: list[Entry] = []
        for place, mismatch in failed.items():
            touch = touches[place[0]].get(place[1]) or next(iter(touches[place[0]].values()))
            entry = known[place].touched(touch) if place in known else Entry.of(*place, touch)
            after = entry.failed(mismatch, position, now, self.delay_of(entry))
            if after is not None:
                entries.append(after)
        still_pending = {entry.place for entry in entries}
        self.postpone(entries, self._sessions.settings.check_interval, now)
        pending.drop(meta, name, [place for place in known if place not in still_pending])
        if self.errors:
            row_errors.resolve_keys(meta, name, [place for place in _places(touches) if place not in failed], now)
        self.pending += len(still_pending - set(known))

    def postpone(self, entries: Sequence[Entry], seconds: float, now: datetime | None = None) -> None:
        """Store entries to be checked after some seconds."""
        due_at = (now or _now()) + timedelta(seconds=seconds)
        pending.put(self._sessions.meta, self._sessions.name, entries, due_at=due_at)

    def postpone_unseen(self, entries: Sequence[Entry]) -> None:
        """Store entries of changes that cannot be checked yet, merged with entries of the same keys."""
        if entries:
            known = pending.known(self._sessions.meta, self._sessions.name, [entry.place for entry in entries])
            merged = [
                known[entry.place].touched(entry.as_touch()) if entry.place in known else entry for entry in entries
            ]
            self.postpone(merged, self._sessions.settings.check_interval)
            self.pending += len(merged)

    def suspect_table(self, table: str, touch: Touch) -> None:
        """Make a whole table pending, for a change that names no rows; merged with an entry that is not decided yet."""
        meta, name = self._sessions.meta, self._sessions.name
        touch = replace(touch, op=TRUNCATE)
        entry = Entry.of(table, (), touch)
        before = pending.known(meta, name, [entry.place]).get(entry.place)
        self.postpone([before.touched(touch) if before else entry], 0)
        self.pending += 1

    def _known(self, touches: Touches) -> dict[TableKey, Entry]:
        places = _places(touches)
        return pending.known(self._sessions.meta, self._sessions.name, places) if self.pending and places else {}

    def delay_of(self, entry: Entry) -> timedelta:
        """Return for how long a row must be wrong to be an error.

        What another writer wrote on the target does not wait for the syncer, if its position is known.
        """
        settings = self._sessions.settings
        is_known = entry.op == TARGET and not settings.syncer.startswith("lag:")
        return timedelta(seconds=min(settings.row_error_delay, settings.check_interval if is_known else math.inf))

    # ---- further checks

    def check_pending(
        self,
        entries: Sequence[Entry],
        mark: Callable[[], int],
        is_final: Callable[[Entry], bool],
        *,
        by_digest: bool = False,
    ) -> None:
        """Check pending keys again; those that still differ become errors if `is_final`, else stay pending.

        `by_digest`: newer changes are not read, and are recognized by the digest of the source row.
        """
        meta, name, now = self._sessions.meta, self._sessions.name, _now()
        pairs = dict(self._tables.pairs)
        # Rows of a stopped table are not proven, and its entries are not needed any more.
        pending.drop(meta, name, [entry.place for entry in entries if entry.source not in pairs])
        entries = [entry for entry in entries if entry.source in pairs]
        failed = self.compare(pairs, _by_table(entry.place for entry in entries))
        position = mark() if failed else 0
        decided: list[TableKey] = []
        remaining: list[Entry] = []
        errors: list[tuple[str, Entry, Mismatch]] = []
        for entry in entries:
            mismatch = failed.get(entry.place)
            if by_digest and mismatch is not None:
                entry = entry.compared_by_digest(mismatch)
            after = None if mismatch is None else entry.failed(mismatch, position, now, self.delay_of(entry))
            if mismatch is not None and after is not None and is_final(entry):
                errors.append((pairs[entry.source].target_name, entry, mismatch))
                after = None
            if after is None:
                decided.append(entry.place)
            else:
                remaining.append(after)
        row_errors.add(meta, name, errors, now)
        self.errors += len(errors)
        self.postpone(remaining, self._sessions.settings.check_interval, now)
        pending.drop(meta, name, decided)
        if self.errors:
            row_errors.resolve_keys(meta, name, [place for place in decided if place not in failed], now)

    def check_errors(self) -> None:
        """Check a page of open errors again, for a share of the time; resolve those whose rows became equal."""
        start = time.monotonic()
        if start < self._errors_at:
            return
        before = _now() - timedelta(seconds=self._sessions.settings.check_interval)
        self._check_errors(list(self._tables.pairs), "new", before)
        now = time.monotonic()
        self._errors_at = now + (now - start) * (1 - _ERRORS_SHARE) / _ERRORS_SHARE

    def check_ignored(self, table: str) -> None:
        """Check the ignored errors of a table again; resolve those whose rows became equal."""
        before = _now()
        while self._check_errors([table], "ignored", before):
            pass

    def _check_errors(self, tables: Sequence[str], state: str, before: datetime) -> bool:
        """Check a page of errors that were last checked before a time; return whether there were any."""
        meta, name, page = self._sessions.meta, self._sessions.name, self._sessions.settings.page
        places = row_errors.to_check(meta, name, tables, state=state, before=before, limit=page)
        if not places:
            return False
        failed = self.compare(dict(self._tables.pairs), _by_table(places))
        now = _now()
        row_errors.still_wrong(meta, name, failed, now)
        equal = [place for place in places if place not in failed]
        row_errors.resolve_keys(meta, name, equal, now)
        return True


def collected(results: Iterator[Any]) -> dict[TableKey, Mismatch]:
    """Return the mismatches in the results of tasks; raise the error of a failed task."""
    failed: dict[TableKey, Mismatch] = {}
    for result in results:
        if isinstance(result, Failure):
            raise with_table(result.error, result.task.pair.name)
        if isinstance(result, Judged):
            failed.update({(result.table, mismatch.key): mismatch for mismatch in result.failed})
    return failed


def may_pass(error: TrueupError) -> bool:
    """Return whether an error of a statement may pass by waiting."""
    return isinstance(error, QueryError) and (error.sqlstate[:2] in _PASSING_CLASSES or error.sqlstate in _PASSING)


def with_table(error: TrueupError, table: str) -> TrueupError:
    """Add the table to an error; return Altered if a server rejects a statement about it, and will again.

    Whatever the reason is (a column, a type, a label of the key or a right is gone), it concerns this table only.
    """
    if isinstance(error, QueryError) and not may_pass(error):
        return Altered(error.message, node=error.node, table=table)
    error.table = error.table or table
    return error


def _places(touches: Touches) -> list[TableKey]:
    return [(table, key) for table, keys in touches.items() for key in keys]


def _by_table(places: Iterable[TableKey]) -> dict[str, list[KeyValues]]:
    keys: dict[str, list[KeyValues]] = {}
    for table, key in places:
        keys.setdefault(table, []).append(key)
    return keys


def _now() -> datetime:
    return datetime.now(timezone.utc)
