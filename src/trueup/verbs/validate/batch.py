"""Merges changes by table and key: the last change of a key counts, and all changes are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime

from trueup.capture.log.pgoutput import Change, Relation, time_of
from trueup.rows.keys import KeyValues
from trueup.verbs.validate.pending import Entry, Touch
from trueup.verbs.validate.plan import Pair

Touches = dict[str, dict[KeyValues, Touch]]
UNCHECKED = "unchecked"
# Returns the name of a table, and its pair if it is validated.
FindPair = Callable[[Relation], "tuple[str, Pair | None]"]
# Returns whether a change of a key, by a transaction, is judged already.
IsJudged = Callable[[str, KeyValues, int], bool]


class Batch:
    """The keys to check, and the number of changes per table and operation."""

    def __init__(
        self, find_pair: FindPair, start: int, *, is_exact: bool = True, is_judged: IsJudged | None = None
    ) -> None:
        self.counts: dict[str, Counter[str]] = {}
        # Changes that are judged already; they are not in `counts`.
        self.judged = 0
        self._is_judged = is_judged
        self.truncated: dict[str, Touch] = {}
        self.size = 0
        self._find_pair = find_pair
        # The first position of a change: its own, or the start of the batch if its own is not known.
        self._start = None if is_exact else start
        self._touched: dict[int, dict[KeyValues, Touch]] = {}
        self._names: dict[int, str] = {}
        self._normal: dict[int, Callable[[KeyValues], KeyValues] | None] = {}
        self._times: dict[int, datetime] = {}

    def add(self, change: Change) -> None:
        """Add a change; one of a stopped table or without a key is counted as unchecked."""
        relation, op, key, _, xid, _ = change
        if relation is None:
            return
        name = self._names.get(relation.id)
        if name is None:
            name = self._add_table(relation)
        counts = self.counts[name]
        normal = self._normal[relation.id]
        if normal is None or not (key or op == "truncate"):
            counts[UNCHECKED] += 1
            return
        if op == "truncate":
            counts[op] += 1
            self.truncated[name] = self._touch(change)
            return
        known: KeyValues = normal(key)  # type: ignore[arg-type]
        if self._is_judged is not None and self._is_judged(name, known, xid):
            self.judged += 1
            return
        counts[op] += 1
        self._put(relation.id, known, self._touch(change))

    def _touch(self, change: Change) -> Touch:
        _, op, _, lsn, xid, micros = change
        return Touch(op, lsn if self._start is None else self._start, lsn, xid, self._time(micros))

    def take(self) -> Touches:
        """Return the keys added since the last call; counts stay."""
        touches: Touches = {}
        for number, keys in self._touched.items():
            if keys:
                touches.setdefault(self._names[number], {}).update(keys)
        self._touched = {}
        self.size = 0
        return touches

    def _put(self, number: int, key: KeyValues, touch: Touch) -> None:
        keys = self._touched.setdefault(number, {})
        before = keys.get(key)
        if before is None:
            self.size += 1
            keys[key] = touch
        else:
            keys[key] = Touch(touch.op, before.first_lsn, touch.last_lsn, touch.xid, touch.at)

    def _add_table(self, relation: Relation) -> str:
        name, pair = self._find_pair(relation)
        self._names[relation.id] = name
        self._normal[relation.id] = pair.normal() if pair else None
        self.counts.setdefault(name, Counter())
        return name

    def _time(self, micros: int) -> datetime:
        if micros not in self._times:
            self._times = {micros: time_of(micros)}
        return self._times[micros]


def without_hidden(touches: Touches, hidden: set[int]) -> tuple[Touches, list[Entry]]:
    """Split keys into those that can be checked, and pending entries for those of invisible transactions."""
    if not hidden:
        return touches, []
    visible: Touches = {}
    entries: list[Entry] = []
    for table, keys in touches.items():
        for key, touch in keys.items():
            if touch.xid in hidden:
                entries.append(Entry.of(table, key, touch))
            else:
                visible.setdefault(table, {})[key] = touch
    return visible, entries
