"""Keys that were compared because of changes of the source: changes of the target that need no further comparison.

A syncer that runs SQL, as `trueup sync` does, leaves nothing in the log of the target that other writers could not
imitate. So its changes are not recognized by the session that wrote them. If the key of any change was compared after
the change was visible on the target, and the rows were equal, then that comparison has judged the change. Changes of
the syncer are compared anyway, as changes of the source, as soon as it has passed them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trueup.capture.log.slot import flushed_position
from trueup.capture.log.visible import Snapshot, read_snapshot
from trueup.db.connection import Connection
from trueup.rows.keys import KeyValues
from trueup.verbs.validate.pending import TableKey

# Maximum keys in memory; changes of forgotten ones are compared again.
_MOST_KEYS = 200_000


@dataclass(frozen=True)
class Moment:
    """A moment before rows of the target are read: what is visible there, and the end of its log."""

    number: int
    snapshot: Snapshot
    position: int


class ComparedKeys:
    """Keys that were equal on both nodes, with the moments before they were read on the target."""

    def __init__(self) -> None:
        self._number = 0
        self._size = 0
        self._checks: deque[tuple[Moment, dict[str, set[KeyValues]]]] = deque()
        # The last question, and the keys that answer it: most changes are of the same table and transaction.
        self._asked: tuple[str, int, int] | None = None
        self._answer: list[set[KeyValues]] = []

    @property
    def number(self) -> int:
        """The number of the last moment."""
        return self._number

    def moment(self, target: Connection) -> Moment:
        """Return the present moment; all rows that are read from now on show what is visible in it."""
        # The position first: what is before it and visible is found again in the log.
        position = flushed_position(target)
        self._number += 1
        return Moment(self._number, read_snapshot(target), position)

    def add(self, moment: Moment, keys: Mapping[str, Iterable[KeyValues]], failed: Iterable[TableKey]) -> None:
        """Add the keys that were compared after a moment, without those that differed."""
        wrong: dict[str, set[KeyValues]] = {}
        for table, key in failed:
            wrong.setdefault(table, set()).add(key)
        equal = {table: set(of_table) for table, of_table in keys.items()}
        for table, differing in wrong.items():
            # A row that prints its key otherwise than the log does belongs to any of the keys.
            equal[table] = equal[table] - differing if differing <= equal.get(table, set()) else set()
        self._checks.append((moment, equal))
        self._asked = None
        self._size += _size(equal)
        while self._size > _MOST_KEYS:
            self._size -= _size(self._checks.popleft()[1])

    def has(self, table: str, key: KeyValues, xid: int, since: int) -> bool:
        """Return whether a key was compared when a change of it was visible.

        `since` is the number of a moment before which the change was visible, if its transaction is not known (0).
        """
        if (table, xid, since) != self._asked:
            self._asked = table, xid, since
            self._answer = [
                keys[table]
                for moment, keys in self._checks
                if table in keys and (moment.snapshot.sees(xid) if xid else moment.number > since)
            ]
        return any(key in keys for keys in self._answer)

    def forget_before(self, position: int) -> None:
        """Forget what later changes of the target, from a position of its log on, do not need."""
        self._asked = None
        while self._checks and self._checks[0][0].position <= position:
            self._size -= _size(self._checks.popleft()[1])

    def forget(self) -> None:
        """Forget everything: the sessions are opened again, maybe with another server."""
        self._checks.clear()
        self._asked = None
        self._size = 0


def _size(keys: Mapping[str, set[KeyValues]]) -> int:
    return sum(len(of_table) for of_table in keys.values())
