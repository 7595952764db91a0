"""Delete rows by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from psycopg import sql

from trueup.db.connection import Connection, Cursor
from trueup.rows.spec import TableSpec
from trueup.rows.write.key_lists import KeyList, in_key_list
from trueup.rows.write.target import column_list, identifier, table_name

if TYPE_CHECKING:
    from typing_extensions import LiteralString


def delete_keys(connection: Connection, spec: TableSpec, keys: KeyList) -> Cursor:
    """Delete the rows of these keys; one statement, so it can be part of a pipeline."""
    query = sql.SQL("DELETE FROM {} t WHERE {}").format(identifier(spec.schema, spec.table), in_key_list(spec))
    return connection.execute(query, keys.literals)


def delete_all(connection: Connection, spec: TableSpec) -> Cursor:
    """Delete all rows of a table. Unlike TRUNCATE this needs no more than the right to delete."""
    return connection.execute(sql.SQL("DELETE FROM {}").format(table_name(spec)))


def delete_matching(
    connection: Connection,
    table: sql.Composable,
    lists: Mapping[str, tuple[LiteralString, Sequence[Any]]],
    match: sql.Composable,
) -> Cursor:
    """Delete the rows `t` that match a row `x` of parallel lists, each given by column name, type and values.

    For callers whose rows are identified by more than the key; `table` and `match` double percent signs.
    """
    arrays = sql.SQL(", ").join(
        sql.SQL("{}::{}[]").format(sql.Placeholder(name), sql.SQL(kind)) for name, (kind, _) in lists.items()
    )
    query = sql.SQL("DELETE FROM {} t USING unnest({}) x({}) WHERE {}").format(
        table, arrays, column_list(lists, parameters=True), match
    )
    return connection.execute(query, {name: list(values) for name, (_, values) in lists.items()})
