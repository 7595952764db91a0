"""The columns that a repair copies from node to node, those it leaves alone, and the guard of a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

from trueup.db import catalog
from trueup.db.catalog import Table
from trueup.db.server_identity import TableIdentity
from trueup.db.snapshot import Control
from trueup.errors import CheckFailed
from trueup.rows.comparable import check, check_key_values
from trueup.rows.encode import column_spec
from trueup.rows.request import TableRequest
from trueup.rows.spec import ColumnSpec, TableSpec
from trueup.rows.write.copy_text import join, split
from trueup.task.past import Past, same_hash
from trueup.verbs.repair.identity import identity_on


@dataclass(frozen=True)
class Layout:
    """The columns of one table on all nodes of a repair."""

    # The compared columns, which the repair makes equal.
    spec: TableSpec
    # The columns that all nodes have and at least one can write; an inserted row gets all that its node can write.
    carried: tuple[ColumnSpec, ...]
    # Per node: writable columns that not all nodes have. A repair leaves them unchanged.
    own: Mapping[str, tuple[ColumnSpec, ...]]
    # Per node: identity columns that an UPDATE cannot set.
    fixed: Mapping[str, tuple[str, ...]]
    # Per node: which table of which database it is.
    identities: Mapping[str, TableIdentity] = field(default_factory=dict)
    # Per node: the places in `carried` of columns that are generated there, and not on all nodes.
    computed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def taken(self) -> tuple[int, ...]:
        """The places in `carried` that an update takes from another node: the compared columns."""
        compared = set(self.spec.column_names)
        return tuple(place for place, column in enumerate(self.carried) if column.name in compared)

    @property
    def is_plain(self) -> bool:
        """Whether a row can be copied between any two nodes unchanged."""
        uniform = not any(self.own.values()) and not any(self.computed.values())
        return uniform and len(self.taken) == len(self.carried)

    def read_from(self, node: str) -> tuple[ColumnSpec, ...]:
        """Return the columns of a line that is read on a node: decisions take values from all of them."""
        return (*self.carried, *self.own[node])

    def inserted(self, node: str) -> tuple[ColumnSpec, ...]:
        """Return the columns that an inserted row gets on a node."""
        computed = self.computed.get(node, ())
        return tuple(column for place, column in enumerate(self.carried) if place not in computed)

    def columns_of(self, node: str) -> tuple[ColumnSpec, ...]:
        """Return the columns of a line that is written on a node."""
        return (*self.inserted(node), *self.own[node])

    def written(self, node: str, line: bytes) -> bytes:
        """Return a line of `read_from` as a line of `columns_of`."""
        computed = self.computed.get(node)
        return line if not computed else join([part for at, part in enumerate(split(line)) if at not in computed])

    def guard(self, node: str) -> TableSpec:
        """Return the table with a hash over all writable columns, which shows whether a row was written since.

        Numbers count by their representation: a change from 1.0 to 1.00 is a write.
        """
        by_name = {column.name: column for column in self.columns_of(node)}
        columns = self.spec.columns if set(by_name) == set(self.spec.column_names) else tuple(by_name.values())
        has_numbers = any(column.encoding == "numeric" for column in columns)
        return replace(
            self.spec, columns=columns, filter="", numeric="representation" if has_numbers else self.spec.numeric
        )


def check_tables(controls: Sequence[Control], table: TableRequest, past: Past | None) -> tuple[Layout, tuple[str, ...]]:
    """Check that the table can be repaired; return its layout, and remarks for the user.

    With a report, rows are hashed as they were for the report.
    """
    checked = check(controls, table)
    spec = same_hash(past, checked.spec) if past else checked.spec
    if spec.is_keyless:
        refuse_keyless(f"{spec.schema}.{spec.table}")
    check_key_values(controls, spec, checked.nullable)
    layout = layout_of(controls, spec)
    computed = {
        layout.carried[place].name: [node for node, others in layout.computed.items() if place in others]
        for places in layout.computed.values()
        for place in places
    }
    return layout, (
        *checked.remarks,
        *(
            f"column {name} is generated on {', '.join(nodes)}, which computes it; the other nodes get its value"
            for name, nodes in computed.items()
        ),
    )


def refuse_keyless(table: str) -> NoReturn:
    """Raise the error for a table without a key."""
    raise CheckFailed(
        ["the table has no key: equal rows cannot be distinguished, so they cannot be repaired"],
        cure="add a primary key (or compare with --key), run the diff again, and repair from its report",
        table=table,
    )


def layout_of(controls: Sequence[Control], spec: TableSpec) -> Layout:
    """Read the columns of the table on all nodes."""
    tables = {control.node.name: _table(control, spec) for control in controls}
    every = {node: {column.name: column for column in table.columns} for node, table in tables.items()}
    writable = {
        node: {name: column for name, column in columns.items() if not column.generated}
        for node, columns in every.items()
    }
    first = next(iter(every.values()))
    carried = [
        name
        for name in first
        if all(name in columns for columns in every.values()) and any(name in columns for columns in writable.values())
    ]
    return Layout(
        spec,
        tuple(column_spec(first[name]) for name in carried),
        {
            node: tuple(column_spec(column) for name, column in columns.items() if name not in carried)
            for node, columns in writable.items()
        },
        {node: fixed_columns(table) for node, table in tables.items()},
        {control.node.name: identity_on(control, spec.schema, spec.table) for control in controls},
        {
            node: tuple(place for place, name in enumerate(carried) if name not in columns)
            for node, columns in writable.items()
        },
    )


def fixed_columns(table: Table) -> tuple[str, ...]:
    """Return the identity columns of a table that an UPDATE cannot set."""
    return tuple(column.name for column in table.columns if column.identity == "a")


def _table(control: Control, spec: TableSpec) -> Table:
    table = catalog.read_table(control.connection, spec.schema, spec.table)
    if table is None:
        raise CheckFailed(
            ["the table was dropped"],
            cure="run the diff again",
            node=control.node.name,
            table=f"{spec.schema}.{spec.table}",
        )
    return table
