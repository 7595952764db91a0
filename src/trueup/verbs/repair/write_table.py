"""The steps that write one table of a node; the caller's transaction contains all of them.

`lock` compares the rows with what was read and locks them, `delete` and `upsert` write, in any order, `check` verifies
the references, `note` completes the undo file. A row that changed after it was read is left as it is and listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import islice

import psycopg
from psycopg.errors import ForeignKeyViolation, RestrictViolation

from trueup.db.connection import Connection
from trueup.db.foreign_keys import ForeignKey
from trueup.db.node import error_from_server
from trueup.engine.progress import Progress
from trueup.errors import QueryError, TrueupError
from trueup.rows.keys import KeyValues
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
from trueup.rows.write.unique import partition_keys
from trueup.verbs.repair.modes import Act
from trueup.verbs.repair.node_work import NodeWork
from trueup.verbs.repair.undo_file import NOT_WRITTEN, UndoFile
from trueup.verbs.repair.write_rows import RowWriter
from trueup.verbs.repair.writes import Writes

_DROPPED = "a trigger or a rule of the table interferes: disable it, or run without --fire-triggers"
# ON DELETE actions that write, as in pg_constraint: cascade, set null, set default.
_ACTIONS = ("c", "n", "d")


class TableWriter:
    """Writes one table of a node in the transaction of its caller."""

    def __init__(self, connection: Connection, work: NodeWork, progress: Progress) -> None:
        self._connection, self.work, self._progress = connection, work, progress
        self._rows = RowWriter(connection, work)
        # Whether a statement of this table runs; another thread names the table while it waits for a lock.
        self.is_active = False
        # What `_may_be_replaced` returned.
        self._replaced: dict[tuple[int, ...], bool] = {}

    @property
    def changed(self) -> set[bytes]:
        """The ids of rows that changed after they were read."""
        return self._rows.changed

    @property
    def blocked(self) -> set[bytes]:
        """Those among `changed` that did not change: a row that was left has a unique value that they would get."""
        return self._rows.blocked

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
                self.changed.update(lock_unchanged(connection, work.guard, ending, with_keys=True))
                self.changed.update(lock_unchanged(connection, work.guard, staying))
            self.changed.update(existing(connection, work.guard, writes.expected("insert")))
            self._progress.advance(len(writes.keys))
        if work.spool.counts["insert"] and work.spool.counts["delete"] and not work.layout.fixed[work.node.name]:
            self._find_renamed()

    def delete(self) -> None:
        """Delete the rows of extra keys."""
        connection, work = self._connection, self.work
        if not work.spool.counts["delete"]:
            return
        if work.fires:
            self.changed.update(delete_unchanged_together(connection, work.guard, self._deleted(), self._rows.path))
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
                self.changed.update(delete_unchanged(connection, work.guard, expected))

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
        self._rows.upsert()

    def fire_deferred(self) -> None:
        """Let deferred triggers fire before the commit: with their search_path, and before `note` reads the rows."""
        if self.work.fires:
            with self._rows.path():
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
    def _replacing(self) -> list[tuple[str, ...] | None]:
        """Columns whose change may delete and insert a row, or ends a unique value (None: any column)."""
        keys = partition_keys(self._connection, self.work.guard)
        return [self.work.layout.fixed[self.work.node.name], *(index.columns for index in self._rows.unique), *keys]

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
        return writes.expected("delete").without(self.changed | set(self._rows.renamed.values()))

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
            self.changed.update(lock_unchanged(self._connection, self.work.guard, expected, with_keys=True))
        self._rows.renamed = {new: name for new, name in found.items() if name not in self.changed}
        # The new row cannot be inserted beside a row that changed.
        self.changed.update(found.keys() - self._rows.renamed.keys())

    def _deleted(self) -> Expected:
        batches = [self._to_delete(writes) for writes in self.work.spool]
        return Expected(
            [name for batch in batches for name in batch.ids],
            [key for batch in batches for key in batch.keys],
            [value for batch in batches for value in batch.hashes],
        )

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
