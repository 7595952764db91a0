"""Statements for the target, and what became of the comparison of both databases."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trueup.db.foreign_keys import TableName


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
    # All rows are deleted first, and copied again.
    empties: bool = False
    # The table is set aside: its rows may be deleted if they are in the way.
    may_empty: bool = False
    # The table of the source whose rows are copied then.
    source_oid: int = 0
    # The table is created, and has to be added to the sync; or is dropped, and has to be removed from it.
    creates: bool = False
    removes: bool = False

    def without_drops(self) -> Change:
        """Return the change without the statements that drop something."""
        return replace(self, statements=tuple(each for each in self.statements if not each.drops))


@dataclass(frozen=True)
class Differences:
    """The changes, in order, and what has to be done by hand."""

    changes: tuple[Change, ...]
    notes: tuple[str, ...] = ()
