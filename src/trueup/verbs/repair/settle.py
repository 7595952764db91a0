"""From the decisions about keys to the writes of each node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trueup.report.json_reader import HOT
from trueup.report.repair import DONE
from trueup.rows.write.copy_text import join, split
from trueup.task.past import UNKNOWN, Hash
from trueup.verbs.repair.layout import Layout
from trueup.verbs.repair.lines import Line
from trueup.verbs.repair.modes import Act, Batch, Gone, Leave, Like, Made
from trueup.verbs.repair.writes import Entry, Left

STALE = "the row changed since the report was written"
UNSAID = "the report does not have the hash of the node's row"
UNCONFIRMED = "the row is hot in the report, so the difference is not confirmed (see trueup rerun)"
GENERATED = "only generated columns differ: they are computed, and cannot be written"
_NO_HASH: dict[Hash, str] = {UNKNOWN: UNSAID, HOT: UNCONFIRMED}


class Settling:
    """Collects the writes of a batch.

    `hashes` has per key the hashes of the report; it is empty where nothing can be stale. `inside` has per node the
    keys whose rows match the filter, if there is a filter: to the report, other rows did not exist.
    """

    def __init__(
        self, batch: Batch, hashes: Sequence[Sequence[Hash]], inside: Mapping[str, set[bytes]] | None = None
    ) -> None:
        self.entries: list[list[Entry]] = [[] for _ in batch.nodes]
        self.left: list[Left] = []
        self._batch = batch
        self._hashes = hashes
        self._inside = inside

    @property
    def may_mirror(self) -> bool:
        """Whether `mirror` can be used: two nodes with the same columns, and no filter to consider."""
        return len(self._batch.nodes) == 2 and self._batch.is_plain and self._inside is None

    def mirror(self, source: int) -> int:
        """Make one of two nodes like the other in all rows; return the number of keys that agree.

        The same as `like` for every key, in one loop: most repairs are this.
        """
        batch, hashes, node = self._batch, self._hashes, 1 - source
        source_rows, own, entries = batch.sides[source], batch.sides[node], self.entries[node]
        agree = 0
        for place, (key, name) in enumerate(zip(batch.keys, batch.ids, strict=True)):
            new, old = source_rows.get(name), own.get(name)
            entry: Entry
            if old is None:
                if new is None:
                    agree += 1
                    continue
                before, entry = None, ("insert", key, name, None, None, new.fields, new.guard)
            else:
                old_hash, guard, fields = old
                if new is None:
                    entry = ("delete", key, name, guard, fields, None, b"")
                elif old_hash == new.hash:
                    agree += 1
                    continue
                elif fields == new.fields:
                    self._leave(place, node, GENERATED)
                    continue
                else:
                    entry = ("update", key, name, guard, fields, new.fields, new.guard)
                before = old_hash.decode()
            if hashes and hashes[place][node] != before:
                self._leave(place, node, _NO_HASH.get(hashes[place][node], STALE))
            elif new is None and self._had_row(place, source):
                self._leave(place, node, STALE)
            else:
                entries.append(entry)
        return agree

    def like(self, place: int, lines: Sequence[Line | None], hashes: Sequence[bytes | None], decision: Like) -> None:
        """Make all nodes like one of them for a key."""
        batch, new, new_hash = self._batch, lines[decision.source], hashes[decision.source]
        for node, old in enumerate(lines):
            if hashes[node] == new_hash:
                continue
            act: Act = "insert" if old is None else "delete" if new is None else "update"
            if act not in decision.allow:
                self._leave(place, node, decision.why or f"no row is {DONE[act]} in this mode")
            elif new is None and self._had_row(place, decision.source):
                self._leave(place, node, STALE)
            elif new is None:
                self._write(place, node, act, old, None, b"")
            elif batch.is_plain:
                # The same columns and the same hash function on all nodes: the row keeps its guard.
                self._write(place, node, act, old, new.fields, new.guard)
            else:
                fields = split(new.fields)[: len(batch.layout.carried)]
                self._write(place, node, act, old, _with_fields(batch.layout, old, fields), None)

    def other(self, place: int, lines: Sequence[Line | None], decision: Gone | Made | Leave) -> None:
        """Delete a row on all nodes, write rows that were put together, or leave the key."""
        if isinstance(decision, Leave):
            self.left.append(Left(self._batch.keys[place], self._batch.nodes, decision.reason))
            return
        for node, old in enumerate(lines):
            if isinstance(decision, Gone):
                if old is not None:
                    self._write(place, node, "delete", old, None, b"")
            elif node in decision.rows:
                new = _with_fields(self._batch.layout, old, decision.rows[node])
                if old is None or new != old.fields:
                    self._write(place, node, "update" if old else "insert", old, new, None)

    def _write(self, place: int, node: int, act: Act, old: Line | None, new: bytes | None, made: bytes | None) -> None:
        reason = self._stale(place, node, old) if self._hashes else ""
        if reason:
            self._leave(place, node, reason)
            return
        layout, name = self._batch.layout, self._batch.nodes[node]
        guard, before = (None, None) if old is None else (old.guard, layout.written(name, old.fields))
        after = None if new is None else layout.written(name, new)
        if before == after:
            self._leave(place, node, GENERATED)
            return
        self.entries[node].append((act, self._batch.keys[place], self._batch.ids[place], guard, before, after, made))

    def _had_row(self, place: int, node: int) -> bool:
        """Return whether the report has a row of this node: if it is gone, its table may have been created again.

        An extra row is deleted on other nodes only if it was extra in the report too.
        """
        return bool(self._hashes) and self._hashes[place][node] is not None

    def _leave(self, place: int, node: int, reason: str) -> None:
        self.left.append(Left(self._batch.keys[place], (self._batch.nodes[node],), reason))

    def _stale(self, place: int, node: int, old: Line | None) -> str:
        """Return why a row must not be written over, or '' if it is as the report says."""
        reported = self._hashes[place][node]
        if reported in _NO_HASH:
            return _NO_HASH[reported]
        if self._inside is not None and self._batch.ids[place] not in self._inside[self._batch.nodes[node]]:
            old = None
        return "" if (None if old is None else old.hash.decode()) == reported else STALE


def _with_fields(layout: Layout, old: Line | None, fields: Sequence[bytes]) -> bytes:
    """Return a row with these fields; an existing row keeps its columns that are not compared."""
    if old is None:
        return join(fields)
    kept = split(old.fields)
    for place in layout.taken:
        kept[place] = fields[place]
    return join(kept)
