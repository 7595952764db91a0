"""What one node gets for some keys: the row before and the row after."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trueup.rows.keys import KeyValues
from trueup.rows.write.guarded import Expected
from trueup.verbs.repair.modes import ACTS, Act

# Examples per act and node.
EXAMPLES = 3

# One key: act, key, id, guard and line before, line and guard after.
Entry = tuple[Act, KeyValues, bytes, "bytes | None", "bytes | None", "bytes | None", "bytes | None"]


@dataclass
class Writes:
    """What one node gets, in parallel lists: per key the row before (guard and line; None: no row) and after.

    `made` is the guard of the row after: b"" where there is none, None where it is known only once it is written.
    `places` are those of the fields that an update changes.
    """

    acts: list[Act] = field(default_factory=list)
    keys: list[KeyValues] = field(default_factory=list)
    ids: list[bytes] = field(default_factory=list)
    guards: list[bytes | None] = field(default_factory=list)
    before: list[bytes | None] = field(default_factory=list)
    after: list[bytes | None] = field(default_factory=list)
    made: list[bytes | None] = field(default_factory=list)
    places: list[tuple[int, ...]] = field(default_factory=list)

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Writes:
        """Return the writes of many keys."""
        acts, keys, ids, guards, before, after, made = map(list, zip(*entries, strict=True))
        places = [_changed(old, new) if act == "update" else () for act, _, _, _, old, new, _ in entries]
        return cls(acts, keys, ids, guards, before, after, made, places)

    def expected(self, *acts: Act) -> Expected:
        """Return the rows before, of these acts."""
        return self._expected([place for place, act in enumerate(self.acts) if act in acts])

    def by_lock(self, is_replaced: Callable[[tuple[int, ...]], bool]) -> tuple[Expected, Expected]:
        """Return the rows before of updates and deletes: those whose key may end, and the others.

        `is_replaced` returns whether a row in which the fields of these places change may be deleted or lose a unique
        value.
        """
        ending, staying = [], []
        for place, act in enumerate(self.acts):
            if act == "delete" or (act == "update" and is_replaced(self.places[place])):
                ending.append(place)
            elif act == "update":
                staying.append(place)
        return self._expected(ending), self._expected(staying)

    def _expected(self, places: Sequence[int]) -> Expected:
        return Expected(
            [self.ids[place] for place in places],
            [self.keys[place] for place in places],
            [self.guards[place] for place in places],
        )

    def expected_after(self) -> Expected:
        """Return the rows after; all their guards must be known."""
        return Expected(self.ids, self.keys, [made or None for made in self.made])

    def examples(self) -> list[int]:
        """Return the places of the first rows of each act."""
        places: list[int] = []
        for act in ACTS:
            place = -1
            for _ in range(min(EXAMPLES, self.acts.count(act))):
                place = self.acts.index(act, place + 1)
                places.append(place)
        return places

    def keep_examples(self) -> None:
        """Drop all rows but those of the examples: a dry run needs no others."""
        kept = [(place, self.before[place], self.after[place]) for place in self.examples()]
        self.before, self.after = [None] * len(self.acts), [None] * len(self.acts)
        for place, before, after in kept:
            self.before[place], self.after[place] = before, after

    def without_rows_before(self) -> Writes:
        """Return the writes without the rows before, which the undo file has."""
        return replace(self, before=[])


def _changed(before: bytes | None, after: bytes | None) -> tuple[int, ...]:
    """Return the places of the fields in which two lines differ."""
    old, new = (before or b"").split(b"\t"), (after or b"").split(b"\t")
    return tuple([place for place, field in enumerate(new) if field != old[place]])


@dataclass(frozen=True)
class Left:
    """A key that is left as it is on some nodes, and why."""

    key: KeyValues
    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Decided:
    """What a task decided for some keys."""

    keys: int
    agree: int
    writes: Mapping[str, Writes]
    left: Sequence[Left]
