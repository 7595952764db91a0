"""The table that rows are written to: its key, and the columns that can be written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from psycopg import sql

from trueup.db.catalog import Table
from trueup.db.foreign_keys import TableName
from trueup.rows.keys import ordered
from trueup.rows.spec import TableSpec


@dataclass(frozen=True)
class Target:
    """A table and the columns that an INSERT or a COPY can write; generated columns are not among them."""

    spec: TableSpec
    columns: tuple[str, ...]
    # Columns that are GENERATED ALWAYS AS IDENTITY: an INSERT or a COPY can set them, an UPDATE cannot.
    fixed: tuple[str, ...] = ()

    @property
    def table(self) -> TableName:
        """Schema and name."""
        return self.spec.schema, self.spec.table

    @property
    def name(self) -> sql.Identifier:
        """The qualified name, for statements."""
        return table_name(self.spec)

    @property
    def updatable(self) -> tuple[str, ...]:
        """The columns that an UPDATE sets: all but those of the key and the fixed ones."""
        return tuple(name for name in self.columns if name not in (*self.spec.key_names, *self.fixed))


def target_of(spec: TableSpec, table: Table) -> Target:
    """Return the target for a table of the catalog."""
    return Target(
        spec,
        tuple(column.name for column in table.columns if not column.generated),
        tuple(column.name for column in table.columns if column.identity == "a"),
    )


def table_name(spec: TableSpec) -> sql.Identifier:
    """Return the qualified name of a table, for statements."""
    return sql.Identifier(spec.schema, spec.table)


def identifier(*parts: str) -> sql.Identifier:
    """Return a name for a statement that has parameters, where a percent sign is doubled."""
    return sql.Identifier(*(part.replace("%", "%%") for part in parts))


def column_list(names: Iterable[str], alias: str = "", *, parameters: bool = False) -> sql.Composed:
    """Return the columns as a comma-separated list, with an alias if given; `parameters`: see `identifier`."""
    quote = identifier if parameters else sql.Identifier
    return sql.SQL(", ").join(quote(alias, name) if alias else quote(name) for name in names)


def same_key(names: Iterable[str], left: str, right: str) -> sql.Composed:
    """Return the condition that two rows, given by their aliases, have equal values in these columns."""
    return sql.SQL(" AND ").join(
        sql.SQL("{} = {}").format(sql.Identifier(left, name), sql.Identifier(right, name)) for name in names
    )


def same_key_value(spec: TableSpec, left: str, right: str, *, names: Sequence[str] = ()) -> sql.Composed:
    """Return the condition that two rows have the same key, as `fetch.among` finds it; each name has its schema.

    `names` are the key columns of the right row, if they have other names.
    """
    pairs = []
    for part, name in zip(spec.key, names or spec.key_names, strict=True):
        other = replace(part, column=replace(part.column, name=name))
        pairs.append(sql.SQL("{} OPERATOR(pg_catalog.=) {}").format(ordered(part, left), ordered(other, right)))
    return sql.SQL(" AND ").join(pairs)
