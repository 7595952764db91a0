"""The indexes in which two rows may not have the same value, or conflicting ones; and the columns of partition keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trueup.db.connection import Connection
from trueup.db.statements import load
from trueup.rows.spec import TableSpec


@dataclass(frozen=True)
class UniqueIndex:
    """A unique index or an exclusion constraint: the columns that it depends on (None: not known)."""

    columns: tuple[str, ...] | None
    # Whether it excludes exactly rows with equal values in these columns.
    by_value: bool
    is_partial: bool
    # Those of the columns that may be NULL.
    nullable: Sequence[str]

    def is_touched_by(self, columns: Sequence[str]) -> bool:
        """Return whether an UPDATE of these columns can change a value of the index."""
        return self.columns is None or not set(self.columns).isdisjoint(columns)


def unique_indexes(connection: Connection, spec: TableSpec) -> list[UniqueIndex]:
    """Return the unique and exclusion indexes of a table and its partitions that are checked at once."""
    rows = connection.execute(
        load("trueup.rows.write", "unique.sql")["indexes"], {"schema": spec.schema, "table": spec.table}
    ).fetchall()
    return [UniqueIndex(None if columns is None else tuple(columns), *kind) for columns, *kind in rows]


def partition_keys(connection: Connection, spec: TableSpec) -> list[tuple[str, ...] | None]:
    """Return the columns of the partition keys of a table and its partitions (None: not known)."""
    rows = connection.execute(
        load("trueup.rows.write", "unique.sql")["partition_keys"], {"schema": spec.schema, "table": spec.table}
    ).fetchall()
    return [None if columns is None else tuple(columns) for (columns,) in rows]
