"""Which columns a repair carries from node to node, which stay as they are, and by which hash a row is known again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trueup.db import catalog
from trueup.db.catalog import Table
from trueup.db.snapshot import Control
from trueup.errors import CheckFailed
from trueup.rows.encode import column_spec
from trueup.rows.spec import ColumnSpec, TableSpec


@dataclass(frozen=True)
class Layout:
    """The columns of one table on all nodes of a repair."""

    # What is compared, and so what is made equal.
    spec: TableSpec
    # The columns that all nodes have and that can be given; a new row gets all of them.
    carried: tuple[ColumnSpec, ...]
    # Of each node: further columns that can be given. No other node has them, so they stay as they are.
    own: Mapping[str, tuple[ColumnSpec, ...]]
    # Identity columns of each node that an UPDATE may not set.
    fixed: Mapping[str, tuple[str, ...]]

    @property
    def taken(self) -> tuple[int, ...]:
        """The places among the carried columns that an update takes from another node: those that are compared."""
        compared = set(self.spec.column_names)
        return tuple(at for at, column in enumerate(self.carried) if column.name in compared)

    @property
    def is_plain(self) -> bool:
        """Whether a row of one node is a row of any other, as it is."""
        return len(self.taken) == len(self.carried) and not any(self.own.values())

    def columns_of(self, node: str) -> tuple[ColumnSpec, ...]:
        """The columns of a line of a node."""
        return (*self.carried, *self.own[node])

    def guard(self, node: str) -> TableSpec:
        """The hash over everything of a row that can be written: whether it is the very same row.

        Numbers count by their representation: 1.0 that became 1.00 is a row that somebody has written.
        """
        by_name = {column.name: column for column in self.columns_of(node)}
        if set(by_name) == set(self.spec.column_names):
            columns = self.spec.columns
        else:
            columns = tuple(by_name.values())
        has_numbers = any(column.encoding == "numeric" for column in columns)
        return replace(
            self.spec, columns=columns, filter="", numeric="representation" if has_numbers else self.spec.numeric
        )


def layout_of(controls: Sequence[Control], spec: TableSpec) -> Layout:
    """Read the columns of the table on all nodes."""
    tables = {control.node.name: _table(control, spec) for control in controls}
    given = {
        node: {column.name: column for column in table.columns if not column.generated}
        for node, table in tables.items()
    }
    first = next(iter(given.values()))
    carried = [name for name in first if all(name in columns for columns in given.values())]
    return Layout(
        spec,
        tuple(column_spec(first[name]) for name in carried),
        {
            node: tuple(column_spec(column) for name, column in columns.items() if name not in carried)
            for node, columns in given.items()
        },
        {
            node: tuple(column.name for column in table.columns if column.identity == "a")
            for node, table in tables.items()
        },
    )


def _table(control: Control, spec: TableSpec) -> Table:
    found = catalog.read_table(control.connection, spec.schema, spec.table)
    if found is None:
        raise CheckFailed(["the table is gone"], node=control.node.name, table=f"{spec.schema}.{spec.table}")
    return found
