"""Changes as they come out of the log, merged by table and key: the last one wins, and all are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime

from trueup.capture.log.pgoutput import Change, Commit, Relation, time_of
from trueup.db.names import display_name
from trueup.rows.keys import KeyValues
from trueup.verbs.validate.pending import Touch
from trueup.verbs.validate.plan import Pair

Touches = dict[str, dict[KeyValues, Touch]]
UNCHECKED = "unchecked"


class Batch:
    """What one read brought: keys to look at, and counts by table and operation."""

    def __init__(self, pairs: Mapping[str, Pair], after: int) -> None:
        self.end = after
        self.counts: dict[str, Counter[str]] = {}
        self.truncated: dict[str, Touch] = {}
        self.size = 0
        self._after = after
        self._pairs = pairs
        self._touched: dict[int, dict[KeyValues, Touch]] = {}
        self._names: dict[int, str] = {}
        self._normal: dict[int, Callable[[KeyValues], KeyValues] | None] = {}
        self._times: dict[int, datetime] = {}

    def add(self, item: Change | Commit) -> None:
        """One change, or the end of a transaction; what was counted before a crash is left out."""
        if isinstance(item, Commit):
            self.end = max(self.end, item.end)
            return
        relation, op, key, lsn, xid, at = item
        if lsn < self._after or relation is None:
            return
        name = self._names.get(relation.id)
        if name is None:
            name = self._learn(relation)
        counts = self.counts[name]
        normal = self._normal[relation.id]
        if normal is None or not (key or op == "truncate"):
            counts[UNCHECKED] += 1
            return
        counts[op] += 1
        touch = Touch(op, lsn, lsn, xid, self._time(at))
        if op == "truncate":
            self.truncated[name] = touch
            return
        self._put(relation.id, normal(key), touch)  # type: ignore[arg-type]

    def touch(self, name: str, key: KeyValues, touch: Touch) -> None:
        """A key that is to be looked at, from elsewhere."""
        self._names.setdefault(hash(name), name)
        self._put(hash(name), key, touch)

    def take(self) -> Touches:
        """The keys of now; the batch goes on empty."""
        found: Touches = {}
        for number, keys in self._touched.items():
            if keys:
                found.setdefault(self._names[number], {}).update(keys)
        self._touched = {}
        self.size = 0
        return found

    def _put(self, number: int, key: KeyValues, touch: Touch) -> None:
        keys = self._touched.setdefault(number, {})
        before = keys.get(key)
        if before is None:
            self.size += 1
            keys[key] = touch
        else:
            keys[key] = Touch(touch.op, before.first_lsn, touch.last_lsn, touch.xid, touch.at)

    def _learn(self, relation: Relation) -> str:
        name = display_name(relation.schema, relation.table)
        pair = self._pairs.get(name)
        self._names[relation.id] = name
        self._normal[relation.id] = pair.normal() if pair else None
        self.counts.setdefault(name, Counter())
        return name

    def _time(self, at: int) -> datetime:
        if at not in self._times:
            self._times = {at: time_of(at)}
        return self._times[at]
