"""Statements for the target, and what became of the comparison of both databases."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trueup.db.foreign_keys import TableName
from trueup.db.names import quoted_name


@dataclass(frozen=True)
class Statement:
    """One statement for the target."""

    text: str
    # It drops something on the target, or may change what is only there: not without `trueup sync ddl --apply`.
    drops: bool = False
    # Expressions of the source in it, which the server parses or evaluates when it runs the statement.
    expressions: tuple[str, ...] = ()
    # What it does with all rows of the target while it holds its lock; "": nothing.
    cost: str = ""
    # It creates a foreign key, or validates one.
    is_reference: bool = False
    # It deletes all rows of this table, or takes away those of a partition: rounds copy the rows again.
    deletes: TableName | None = None
    detaches: TableName | None = None
    # It takes rows out of a partition, or inserts them again.
    moves: bool = False
    # The column that it adds without values, and its number on the source.
    adds: tuple[str, int] | None = None


@dataclass(frozen=True)
class Change:
    """The statements for one table, which are one transaction of the target."""

    table: str
    statements: tuple[Statement, ...]
    # The names of the table after the change, for checks; None: it is dropped, or several tables are renamed.
    name: TableName | None = None
    # Its columns and their types, which expressions refer to.
    columns: tuple[tuple[str, str], ...] = ()
    # The operator classes of its indexes and partition keys that are not part of PostgreSQL, as quoted names.
    classes: tuple[str, ...] = ()
    # The table is set aside: its rows may be deleted if they are in the way.
    may_empty: bool = False
    # The table of the source whose rows are copied then.
    source_oid: int = 0
    # The tables of the target that the statements mean, by name and oid: a rename before them may have failed.
    expects: tuple[tuple[TableName, int], ...] = ()
    # The table has to be added to the sync; or the one that was synced is dropped, which the source has no more.
    creates: bool = False
    removes: int = 0

    @property
    def empties(self) -> bool:
        """Whether all rows of a table are deleted, and copied again."""
        return any(each.deletes for each in self.statements)

    def emptied(self) -> Change:
        """Return the change with all rows of the table deleted first."""
        assert self.name is not None
        return replace(self, statements=(deletion(self.name), *self.statements))

    def without_drops(self) -> Change:
        """Return the change without the statements that drop something."""
        return replace(self, statements=tuple(each for each in self.statements if not each.drops))


def deletion(name: TableName, *, drops: bool = False) -> Statement:
    """Return the statement that deletes all rows of a table of the target."""
    quoted = ".".join(map(quoted_name, name))
    return Statement(f"DELETE FROM {quoted}", drops=drops, deletes=name)


@dataclass(frozen=True)
class Differences:
    """The changes, in order, and what has to be done by hand."""

    changes: tuple[Change, ...]
    notes: tuple[str, ...] = ()
    # Other differences can be seen only after these changes.
    is_first_part: bool = False
