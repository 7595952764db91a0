"""The updates and inserts of one table of a node.

Rows that exist are updated in place, in exactly the columns that differ: a session that waits for the lock of such a
row then finds the row, and rows that refer to it keep their parent. Only where unique values change places, and nothing
else helps, rows are deleted and inserted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cached_property, partial

import psycopg
from psycopg.errors import ExclusionViolation, UniqueViolation

from trueup.db.connection import Connection, one_value
from trueup.errors import QueryError, TrueupError
from trueup.rows.write.changes import (
    INSERTED,
    Staged,
    delete_replaced,
    fill,
    insert_staged,
    park_holders,
    replace_holders,
    replace_touching,
    stage_changes,
    staged_line,
    taken_values,
    unstage,
    update_staged,
    upsert_staged,
)
from trueup.rows.write.copy import check_arrived, rows_in, send_lines
from trueup.rows.write.triggers import application_path
from trueup.rows.write.unique import UniqueIndex, unique_indexes
from trueup.verbs.repair.modes import Act
from trueup.verbs.repair.node_work import NodeWork

# Above this number of different sets of columns, all rows get one UPDATE of the columns of all sets. The rows are
# locked and unchanged, so that the other columns get the values that they have.
_MOST_SETS = 16


class RowWriter:
    """Updates and inserts the rows of one table of a node in the transaction of its caller."""

    def __init__(self, connection: Connection, work: NodeWork) -> None:
        self._connection, self._work = connection, work
        # The ids of rows that changed after they were read.
        self.changed: set[bytes] = set()
        # Those among them that did not change: a row that was left has a unique value that they would get.
        self.blocked: set[bytes] = set()
        # Missing keys and the extra keys that equal them: such a row gets another key in place.
        self.renamed: dict[bytes, bytes] = {}

    def path(self) -> AbstractContextManager[None]:
        """Return the search_path for statements that fire triggers."""
        if not self._work.fires:
            return nullcontext()
        return application_path(self._connection, self._work.schemas)

    @cached_property
    def unique(self) -> list[UniqueIndex]:
        """The unique indexes of the table."""
        return unique_indexes(self._connection, self._work.guard)

    def upsert(self) -> None:
        """Update the rows that differ in place, and insert those that are missing."""
        updates, is_one_copy = self._work.spool.counts["update"] or self.renamed, not self._work.has_own
        if updates and not self._work.silent:
            # One statement: its rows may refer to each other.
            self._upsert_firing(("update", "insert") if is_one_copy else ("update",))
        elif updates:
            self._update_silently()
        if not updates or self._work.silent or not is_one_copy:
            # Without updates, this needs no right but INSERT.
            self._insert()

    @cached_property
    def _sets(self) -> dict[tuple[int, ...], int]:
        """The number of each set of changed places; 0: an UPDATE cannot set them, so the row is replaced."""
        columns = self._work.target("update").columns
        fixed = {columns.index(name) for name in self._work.layout.fixed[self._work.node.name]}
        found = {places for writes in self._work.spool for places in writes.places if places}
        changed = sorted(places for places in found if fixed.isdisjoint(places))
        numbers = {places: 1 if len(changed) > _MOST_SETS else number for number, places in enumerate(changed, 1)}
        return numbers | dict.fromkeys(found - set(changed), INSERTED)

    def _stage(self, acts: Sequence[Act]) -> tuple[Staged, int]:
        """Stage the rows of these acts; return their number."""
        target, numbers = self._work.target(acts[0]), self._sets
        columns: dict[int, set[int]] = {}
        for places, number in numbers.items():
            columns.setdefault(number, set()).update(places)
        sets = [
            tuple(target.columns[place] for place in sorted(columns[number]))
            for number in range(1, max(columns, default=0) + 1)
        ]
        if self.renamed:
            sets.append(self._work.target("insert").columns)
        renamed = len(sets)
        missing = b"\t\\N" * (len(target.columns) - len(self._work.target("insert").columns))
        staged, sent = stage_changes(self._connection, target, sets), 0

        left_out = self.changed | self.renamed.keys()

        def lines() -> Iterator[bytes]:
            nonlocal sent
            for writes in self._work.spool:
                batch = [
                    staged_line(numbers[places] if act == "update" else INSERTED, name, line)
                    for name, act, line, places in zip(
                        writes.ids, writes.acts, writes.after, writes.places, strict=True
                    )
                    if act in acts and line is not None and (places or act == "insert") and name not in left_out
                ]
                batch += [
                    staged_line(renamed, self.renamed[name], line[:-1] + missing + b"\n")
                    for name, line in zip(writes.ids, writes.after, strict=True)
                    if "update" in acts and name in self.renamed and line is not None
                ]
                sent += len(batch)
                yield b"".join(batch)

        fill(self._connection, staged, lines())
        return staged, sent

    def _upsert_firing(self, acts: Sequence[Act]) -> None:
        fixed = [name for name in self._work.layout.fixed[self._work.node.name] if INSERTED in self._sets.values()]
        if fixed:
            raise TrueupError(
                f"rows differ in column {fixed[0]}, which is GENERATED ALWAYS AS IDENTITY: an UPDATE cannot set it",
                cure="run without --fire-triggers, as a role that may set session_replication_role: rows are then"
                " deleted and copied, which can set it",
            )
        staged, sent = self._stage(acts)
        try:
            with self.path():
                arrived = upsert_staged(self._connection, staged)
        except UniqueViolation as error:
            raise QueryError(
                f"{error.diag.message_primary} ({error.diag.message_detail})",
                sqlstate="23505",
                cure="if rows swap unique values, run without --fire-triggers, as a role that may set"
                " session_replication_role: these rows are then deleted and copied",
            ) from None
        check_arrived(sent, arrived)

    def _update_silently(self) -> None:
        staged, sent = self._stage(("update",))
        indexes = [index for index in self.unique if any(index.is_touched_by(columns) for columns in staged.sets)]
        if not indexes:
            check_arrived(sent, self._write_staged(staged))
            return
        try:
            with self._connection.transaction():
                arrived = self._write_staged(staged)
        except (UniqueViolation, ExclusionViolation):
            left = len(self.changed)
            arrived = self._write_colliding(staged, indexes)
            sent -= len(self.changed) - left
        check_arrived(sent, arrived)

    def _write_staged(self, staged: Staged) -> int:
        with self.path():
            deleted = delete_replaced(self._connection, staged)
            updated = update_staged(self._connection, staged)
            inserted = insert_staged(self._connection, staged)
        check_arrived(deleted, inserted)
        return updated + inserted

    def _write_colliding(self, staged: Staged, indexes: Sequence[UniqueIndex]) -> int:
        """Write rows whose unique values change places.

        A row whose new value is that of a row that was left is left as well. Values in the way become NULL first, else
        the rows that are in the way, or may be, are deleted and inserted.
        """
        by_value = [index for index in indexes if index.by_value]
        others = [index for index in indexes if not index.by_value]
        if self._leave_blocked(staged):
            with suppress(UniqueViolation, ExclusionViolation), self._connection.transaction():
                return self._write_staged(staged)
        if not self._work.fires:
            # A NULL that the table does not allow, or that counts as a value, is an error: then rows are replaced.
            with suppress(psycopg.IntegrityError), self._connection.transaction():
                park_holders(self._connection, staged, by_value)
                return self._write_staged(staged)
        replaces = (
            partial(replace_holders, self._connection, staged, by_value),
            partial(replace_touching, self._connection, staged, others),
            partial(replace_touching, self._connection, staged, indexes),
        )
        for replace_more in replaces:
            if replace_more():
                with suppress(UniqueViolation, ExclusionViolation), self._connection.transaction():
                    return self._write_staged(staged)
        # Another row of the table has the value: this raises.
        return self._write_staged(staged)

    def _leave_blocked(self, staged: Staged, *, are_new: bool = False) -> int:
        """Leave the staged rows whose new unique values rows have that were left; return their number.

        `are_new`: see `taken_values`. A row with the key of a new one was inserted by another session a moment ago.
        """
        number = 0
        while True:
            taken = taken_values(self._connection, staged, self.unique, are_new=are_new)
            arrived = {place: name for place, name, holder in taken if are_new and holder == name}
            left = self.changed | self._work.left
            blocked = {place: name for place, name, holder in taken if holder in left and place not in arrived}
            if not arrived and not blocked:
                return number
            unstage(self._connection, staged, [*arrived, *blocked])
            self.changed.update(arrived.values(), blocked.values())
            self.blocked.update(blocked.values())
            for new, old in self.renamed.items():
                if old in self.blocked:
                    self.blocked.add(new)
                    self.changed.add(new)
            number += len(arrived) + len(blocked)

    def _insert(self) -> None:
        """COPY the missing rows."""
        target, sent = self._work.target("insert"), 0
        left_out = self.changed | self.renamed.keys()

        def lines() -> Iterator[bytes]:
            nonlocal sent
            for writes in self._work.spool:
                batch = [
                    line
                    for name, act, line in zip(writes.ids, writes.acts, writes.after, strict=True)
                    if act == "insert" and line is not None and name not in left_out
                ]
                sent += len(batch)
                yield b"".join(batch)

        if not self._work.spool.counts["insert"]:
            return
        try:
            with self._connection.transaction(), self.path():
                arrived = send_lines(self._connection, rows_in(target), lines())
        except UniqueViolation:
            if not one_value(self._connection.execute("SELECT has_database_privilege(current_database(), 'TEMP')")):
                raise
            staged, sent = self._stage(("insert",))
            left = self._leave_blocked(staged, are_new=True)
            if not left:
                raise
            with self.path():
                arrived = insert_staged(self._connection, staged) + left
        check_arrived(sent, arrived)
