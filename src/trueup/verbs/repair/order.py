"""The order in which the tables of a node are written where foreign keys fire: parents first; deletes the opposite way.

A foreign key inside a cycle that is deferrable is checked at the end of the transaction, so it needs no order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from trueup.db.connection import Connection
from trueup.db.foreign_keys import ForeignKey, TableName, in_order, read_foreign_keys
from trueup.db.names import display_name
from trueup.db.statements import load


@dataclass(frozen=True)
class WriteOrder:
    """All tables, parents first; and the tables that cannot be ordered, with the foreign keys between them."""

    tables: tuple[TableName, ...]
    stuck: tuple[tuple[TableName, ...], ...] = ()

    def reasons(self, keys: Sequence[ForeignKey]) -> list[str]:
        """Return why the tables cannot be written while foreign keys fire."""
        reasons = []
        for group in self.stuck:
            names = [key.name for key in keys if key.child in group and key.parent in group and key.child != key.parent]
            reasons.append(
                f"{', '.join(display_name(*table) for table in group)} refer to each other by foreign keys that are not"
                f" deferrable ({', '.join(names)}), so their rows cannot be written while these fire; write without"
                " --fire-triggers as a role that may set session_replication_role, or run ALTER TABLE ... ALTER"
                " CONSTRAINT ... DEFERRABLE"
            )
        return reasons


def write_order(
    tables: Sequence[TableName],
    keys: Sequence[ForeignKey],
    inserts: AbstractSet[TableName],
    deletes: AbstractSet[TableName],
) -> WriteOrder:
    """Return the order for these tables; `inserts` and `deletes` are those that get new rows or lose rows."""
    groups = {table: group for group in in_order(tables, keys).groups for table in group}
    # A cycle cannot be ordered: its deferrable keys wait for the end of the transaction.
    immediate = [key for key in keys if not (key.deferrable and groups.get(key.child) == groups.get(key.parent))]
    order = in_order(tables, immediate)
    # If one table of a cycle gets new rows, these come first.
    ordered = [table for group in order.groups for table in sorted(group, key=lambda table: table not in inserts)]
    stuck = [group for group in order.cycles if len(inserts & set(group)) > 1 or len(deletes & set(group)) > 1]
    return WriteOrder(tuple(ordered), tuple(stuck))


def keys_among(connection: Connection, tables: Sequence[TableName]) -> list[ForeignKey]:
    """Return the foreign keys between these tables.

    A foreign key of a partition, or of the table that a partition belongs to, counts for the table of the list.
    """
    members = members_of(connection, tables)
    return [
        replace(key, child=child, parent=parent)
        for key in read_foreign_keys(connection, members)
        for child in members.get(key.child, ())
        for parent in members.get(key.parent, ())
    ]


def members_of(connection: Connection, tables: Sequence[TableName]) -> Mapping[TableName, list[TableName]]:
    """Return for each table, its partitions and the tables it is a partition of: the tables of the list."""
    query = load("trueup.verbs.repair", "order.sql")["members"]
    members: dict[TableName, list[TableName]] = {}
    for schema, table in tables:
        for row in connection.execute(query, {"schema": schema, "table": table}).fetchall():
            members.setdefault((row[0], row[1]), []).append((schema, table))
    return members
