"""The steps that write one table of a node; the caller's transaction contains all of them.

`lock` compares the rows with what was read and locks them, `delete` and `upsert` write, in any order, `check` verifies
the references, `note` completes the undo file. A row that changed after it was read is left as it is and listed.

Rows that exist are updated in place, in exactly the columns that differ: a session that waits for the lock of such a
row then finds the row, and rows that refer to it keep their parent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cached_property, partial
from itertools import islice

import psycopg
from psycopg.errors import ExclusionViolation, ForeignKeyViolation, RestrictViolation, UniqueViolation

from trueup.db.connection import Connection, one_value
from trueup.db.foreign_keys import ForeignKey
from trueup.db.node import error_from_server
from trueup.engine.progress import Progress
from trueup.errors import QueryError, TrueupError
from trueup.rows.keys import KeyValues
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
from trueup.rows.write.copy_text import key_of
from trueup.rows.write.equal_keys import equal_keys
from trueup.rows.write.guarded import (
    KEYS_PER_STATEMENT,
    Expected,
    delete_locked,
    delete_unchanged,
    delete_unchanged_together,
    existing,
    has_rows,
    lock_unchanged,
    read_hashes,
)
from trueup.rows.write.references import acted_on, check_references, lock_for_deferrable
from trueup.rows.write.target import Target
from trueup.rows.write.triggers import application_path
from trueup.rows.write.unique import UniqueIndex, partition_keys, unique_indexes
from trueup.verbs.repair.modes import Act
from trueup.verbs.repair.node_work import NodeWork
from trueup.verbs.repair.undo_file import NOT_WRITTEN, UndoFile
from trueup.verbs.repair.writes import Writes

_DROPPED = "a trigger or a rule of the table interferes: disable it, or run without --fire-triggers"
# Above this number of different sets of columns, all rows get one UPDATE of the columns of all sets. The rows are
# locked and unchanged, so that the other columns get the values that they have.
_MOST_SETS = 16
# ON DELETE actions that write, as in pg_constraint: cascade, set null, set default.
_ACTIONS = ("c", "n", "d")


class TableWriter:
    """Writes one table of a node in the transaction of its caller."""

    def __init__(self, connection: Connection, work: NodeWork, progress: Progress) -> None:
        self._connection, self.work, self._progress = connection, work, progress
        # The ids of rows that changed after they were read.
        self.changed: set[bytes] = set()
        # Those among them that did not change: a row that was left has a unique value that they would get.
        self.blocked: set[bytes] = set()
        # Whether a statement of this table runs; another thread names the table while it waits for a lock.
        self.is_active = False
        # Missing keys and the extra keys that equal them: such a row gets another key in place.
        self._renamed: dict[bytes, bytes] = {}
        # What `_may_be_replaced` returned.
        self._replaced: dict[tuple[int, ...], bool] = {}

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Convert errors of the driver to those of trueup, with the name of the table."""
        self.is_active = True
        try:
            yield
        except TrueupError as error:
            error.table = error.table or self.work.shown
            raise
        except psycopg.Error as error:
            raise error_from_server(error, self.work.node, table=self.work.shown) from None
        finally:
            self.is_active = False

    def lock(self) -> None:
        """Lock the rows in the order of their keys and compare them with what was read."""
        connection, work = self._connection, self.work
        if work.silent:
            lock_for_deferrable(connection, work.guard)
        for writes in work.spool:
            if work.spool.counts["update"]:
                ending, staying = writes.by_lock(self._may_be_replaced)
                self.changed |= lock_unchanged(connection, work.guard, ending, with_keys=True)
                self.changed |= lock_unchanged(connection, work.guard, staying)
            self.changed |= existing(connection, work.guard, writes.expected("insert"))
            self._progress.advance(len(writes.keys))
        if work.spool.counts["insert"] and work.spool.counts["delete"] and not work.layout.fixed[work.node.name]:
            self._find_renamed()

    def delete(self) -> None:
        """Delete the rows of extra keys."""
        connection, work = self._connection, self.work
        if not work.spool.counts["delete"]:
            return
        if work.fires:
            self.changed |= delete_unchanged_together(connection, work.guard, self._deleted(), self._path)
            return
        for writes in work.spool:
            expected = self._to_delete(writes)
            if not expected.keys:
                continue
            if work.spool.counts["update"]:
                deleted = delete_locked(connection, work.guard, expected.keys)
                if deleted != len(expected.keys):
                    raise TrueupError(f"{len(expected.keys) - deleted} rows were not deleted", cure=_DROPPED)
            else:
                # Without the right to UPDATE, rows cannot be locked.
                self.changed |= delete_unchanged(connection, work.guard, expected)

    def delete_if_unreferenced(self, keys: Sequence[ForeignKey] = ()) -> bool:
        """Delete like `delete`; return False, and delete nothing, if a row still refers to one of them.

        `keys` are the foreign keys between the tables that are written: their ON DELETE actions must not be needed.
        """
        if not self.work.fires or not self.work.spool.counts["delete"]:
            self.delete()
            return True
        if self._acted_on(keys) is not None:
            return False
        try:
            with self._connection.transaction():
                self.delete()
        except (ForeignKeyViolation, RestrictViolation):
            return False
        return True

    def delete_referenced(self, keys: Sequence[ForeignKey] = ()) -> None:
        """Delete like `delete`; raise if an ON DELETE action would change or delete another row."""
        found = self._acted_on(keys)
        if found is not None:
            key, values = found
            raise QueryError(
                f"foreign key {key} would change or delete a row that the repair does not list, or deletes later:"
                f" ({', '.join(values)}) refers to a row of {self.work.shown} that is deleted",
                sqlstate="23503",
                cure="run the diff again, and repair its report; if the tables refer to each other, write without"
                " --fire-triggers, as a role that may set session_replication_role",
            )
        self.delete()

    def _acted_on(self, keys: Sequence[ForeignKey]) -> tuple[ForeignKey, tuple[str, ...]] | None:
        """Return a foreign key whose ON DELETE action would change or delete another row, and such a row."""
        spec = self.work.guard
        if self.work.silent or not self.work.spool.counts["delete"]:
            return None
        for key in keys:
            if key.parent == (spec.schema, spec.table) and key.on_delete in _ACTIONS:
                row = acted_on(self._connection, key, Target(spec, spec.key_names), self._deleted().ids)
                if row is not None:
                    return key, row
        return None

    def upsert(self) -> None:
        """Update the rows that differ in place, and insert those that are missing."""
        updates, is_one_copy = self.work.spool.counts["update"] or self._renamed, not self.work.has_own
        if updates and not self.work.silent:
            # One statement: its rows may refer to each other.
            self._upsert_firing(("update", "insert") if is_one_copy else ("update",))
        elif updates:
            self._update_silently()
        if not updates or self.work.silent or not is_one_copy:
            # Without updates, this needs no right but INSERT.
            self._insert()

    def fire_deferred(self) -> None:
        """Let deferred triggers fire before the commit: with their search_path, and before `note` reads the rows."""
        if self.work.fires:
            with self._path():
                self._connection.execute("SET CONSTRAINTS ALL IMMEDIATE")

    def check(self) -> None:
        """Check what silenced triggers do not check."""
        if self.work.silent:
            check_references(self._connection, self.work.guard, self._keys)

    def note(self, undo: UndoFile) -> None:
        """Add to the undo file the hashes of written rows that were not known before, or that a trigger changed."""
        work = self.work
        for writes in work.spool:
            is_known = not self.changed and None not in writes.made
            if is_known and (not work.watched or has_rows(self._connection, work.guard, writes.expected_after())):
                continue
            undo.after(work.number, work.node.name, self._hashes_now(writes))

    @property
    def counts(self) -> Counter[Act]:
        """The number of rows per act."""
        return self.work.spool.counts if not self.changed else Counter(act for _, act in self._acts())

    def _path(self) -> AbstractContextManager[None]:
        """Return the search_path for statements that fire triggers."""
        if not self.work.fires:
            return nullcontext()
        return application_path(self._connection, self.work.schemas)

    def _acts(self, columns: Collection[str] | None = None) -> Iterator[tuple[KeyValues, Act]]:
        """Yield key and act of every row that is written; `columns`: see `_keys`."""
        names = self.work.target("update").columns
        if columns is not None and not set(columns) <= set(names):
            # A generated column changes with others.
            columns = None
        for writes in self.work.spool:
            for key, name, act, places in zip(writes.keys, writes.ids, writes.acts, writes.places, strict=True):
                if name in self.changed:
                    continue
                is_other = (
                    act == "update" and columns is not None and not any(names[place] in columns for place in places)
                )
                if not is_other or self._may_be_replaced(places):
                    yield key, act

    def _keys(self, columns: Collection[str] | None) -> Iterator[tuple[list[KeyValues], list[KeyValues]]]:
        """Yield batches of keys whose rows were written and of keys whose rows were deleted.

        `columns`: of the updated rows, only those in which one of these columns changed, and those that may have been
        deleted and inserted.
        """
        acts = self._acts(columns)
        while batch := list(islice(acts, KEYS_PER_STATEMENT)):
            yield [key for key, act in batch if act != "delete"], [key for key, act in batch if act == "delete"]

    @cached_property
    def _unique(self) -> list[UniqueIndex]:
        return unique_indexes(self._connection, self.work.guard)

    @cached_property
    def _replacing(self) -> list[tuple[str, ...] | None]:
        """Columns whose change may delete and insert a row, or ends a unique value (None: any column)."""
        keys = partition_keys(self._connection, self.work.guard)
        return [self.work.layout.fixed[self.work.node.name], *(index.columns for index in self._unique), *keys]

    def _may_be_replaced(self, places: tuple[int, ...]) -> bool:
        """Return whether a row may be deleted and inserted, or lose a unique value, if these fields of it change."""
        found = self._replaced.get(places)
        if found is None:
            names = self.work.target("update").columns
            changed = {names[place] for place in places}
            found = any(columns is None or not changed.isdisjoint(columns) for columns in self._replacing)
            self._replaced[places] = found
        return found

    def _to_delete(self, writes: Writes) -> Expected:
        return writes.expected("delete").without(self.changed | set(self._renamed.values()))

    def _find_renamed(self) -> None:
        """Find rows that get another key in place, and lock them."""
        acts: dict[Act, set[bytes]] = {"insert": set(), "delete": set()}
        for writes in self.work.spool:
            for name, act in zip(writes.ids, writes.acts, strict=True):
                if act != "update" and name not in self.changed:
                    acts[act].add(name)
        found = equal_keys(self._connection, self.work.guard, acts["insert"], acts["delete"])
        old = set(found.values())
        for writes in self.work.spool if found else ():
            expected = writes.expected("delete").without(acts["delete"] - old)
            self.changed |= lock_unchanged(self._connection, self.work.guard, expected, with_keys=True)
        self._renamed = {new: name for new, name in found.items() if name not in self.changed}
        # The new row cannot be inserted beside a row that changed.
        self.changed |= found.keys() - self._renamed.keys()

    def _deleted(self) -> Expected:
        batches = [self._to_delete(writes) for writes in self.work.spool]
        return Expected(
            [name for batch in batches for name in batch.ids],
            [key for batch in batches for key in batch.keys],
            [value for batch in batches for value in batch.hashes],
        )

    # Updates and inserts.

    @cached_property
    def _sets(self) -> dict[tuple[int, ...], int]:
        """The number of each set of changed places; 0: an UPDATE cannot set them, so the row is replaced."""
        columns = self.work.target("update").columns
        fixed = {columns.index(name) for name in self.work.layout.fixed[self.work.node.name]}
        found = {places for writes in self.work.spool for places in writes.places if places}
        changed = sorted(places for places in found if fixed.isdisjoint(places))
        numbers = {places: 1 if len(changed) > _MOST_SETS else number for number, places in enumerate(changed, 1)}
        return numbers | dict.fromkeys(found - set(changed), INSERTED)

    def _stage(self, acts: Sequence[Act]) -> tuple[Staged, int]:
        """Stage the rows of these acts; return their number."""
        target, numbers = self.work.target(acts[0]), self._sets
        columns: dict[int, set[int]] = {}
        for places, number in numbers.items():
            columns.setdefault(number, set()).update(places)
        sets = [
            tuple(target.columns[place] for place in sorted(columns[number]))
            for number in range(1, max(columns, default=0) + 1)
        ]
        if self._renamed:
            sets.append(tuple(column.name for column in self.work.layout.carried))
        renamed = len(sets)
        missing = b"\t\\N" * (len(target.columns) - len(self.work.layout.carried))
        staged, sent = stage_changes(self._connection, target, sets), 0

        left_out = self.changed | self._renamed.keys()

        def lines() -> Iterator[bytes]:
            nonlocal sent
            for writes in self.work.spool:
                batch = [
                    staged_line(numbers[places] if act == "update" else INSERTED, name, line)
                    for name, act, line, places in zip(
                        writes.ids, writes.acts, writes.after, writes.places, strict=True
                    )
                    if act in acts and line is not None and (places or act == "insert") and name not in left_out
                ]
                batch += [
                    staged_line(renamed, self._renamed[name], line[:-1] + missing + b"\n")
                    for name, line in zip(writes.ids, writes.after, strict=True)
                    if "update" in acts and name in self._renamed and line is not None
                ]
                sent += len(batch)
                yield b"".join(batch)

        fill(self._connection, staged, lines())
        return staged, sent

    def _upsert_firing(self, acts: Sequence[Act]) -> None:
        fixed = [name for name in self.work.layout.fixed[self.work.node.name] if INSERTED in self._sets.values()]
        if fixed:
            raise TrueupError(
                f"rows differ in column {fixed[0]}, which is GENERATED ALWAYS AS IDENTITY: an UPDATE cannot set it",
                cure="run without --fire-triggers, as a role that may set session_replication_role: rows are then"
                " deleted and copied, which can set it",
            )
        staged, sent = self._stage(acts)
        try:
            with self._path():
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
        indexes = [index for index in self._unique if any(index.is_touched_by(columns) for columns in staged.sets)]
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
        if not self.work.fires:
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
            taken = taken_values(self._connection, staged, self._unique, are_new=are_new)
            arrived = {place: name for place, name, holder in taken if are_new and holder == name}
            left = self.changed | self.work.left
            blocked = {place: name for place, name, holder in taken if holder in left and place not in arrived}
            if not arrived and not blocked:
                return number
            unstage(self._connection, staged, [*arrived, *blocked])
            self.changed.update(arrived.values(), blocked.values())
            self.blocked.update(blocked.values())
            for new, old in self._renamed.items():
                if old in self.blocked:
                    self.blocked.add(new)
                    self.changed.add(new)
            number += len(arrived) + len(blocked)

    def _write_staged(self, staged: Staged) -> int:
        with self._path():
            deleted = delete_replaced(self._connection, staged)
            updated = update_staged(self._connection, staged)
            inserted = insert_staged(self._connection, staged)
        check_arrived(deleted, inserted)
        return updated + inserted

    def _insert(self) -> None:
        """COPY the missing rows."""
        target, sent = self.work.target("insert"), 0
        left_out = self.changed | self._renamed.keys()

        def lines() -> Iterator[bytes]:
            nonlocal sent
            for writes in self.work.spool:
                batch = [
                    line
                    for name, act, line in zip(writes.ids, writes.acts, writes.after, strict=True)
                    if act == "insert" and line is not None and name not in left_out
                ]
                sent += len(batch)
                yield b"".join(batch)

        if not self.work.spool.counts["insert"]:
            return
        try:
            with self._connection.transaction(), self._path():
                arrived = send_lines(self._connection, rows_in(target), lines())
        except UniqueViolation:
            if not one_value(self._connection.execute("SELECT has_database_privilege(current_database(), 'TEMP')")):
                raise
            staged, sent = self._stage(("insert",))
            left = self._leave_blocked(staged, are_new=True)
            if not left:
                raise
            with self._path():
                arrived = insert_staged(self._connection, staged) + left
        check_arrived(sent, arrived)

    def _hashes_now(self, writes: Writes) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield id and hash of the rows as they are now in this transaction; raise if one was not written."""
        hashes = read_hashes(self._connection, self.work.guard, writes.keys)
        for name, act in zip(writes.ids, writes.acts, strict=True):
            if name in self.changed:
                yield name, NOT_WRITTEN
                continue
            if (act == "delete") == (name in hashes):
                what = "was not deleted" if act == "delete" else "did not arrive"
                raise TrueupError(f"the row ({', '.join(key_of(name))}) {what}", cure=_DROPPED)
            yield name, hashes.get(name)
