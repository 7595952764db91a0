"""Rows as one array literal of the table's row type: read on one node and inserted on another with one statement each.

The server writes and parses the texts of the rows, each column with the functions of its own type.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from trueup.db.connection import Connection, Cursor
from trueup.rows.spec import TableSpec
from trueup.rows.write.key_lists import KeyList, in_key_list
from trueup.rows.write.target import Target, column_list, identifier


def select_rows(
    connection: Connection, spec: TableSpec, row_type: Sequence[str], keys: KeyList | None, *, most: int | None = None
) -> Cursor:
    """Select the number of rows of these keys, and the rows as an array literal (NULL if there are none).

    `row_type` names the columns of the target's row type in its order, generated ones included. Without keys: all rows.
    At most `most` rows and one are selected.
    """
    query = sql.SQL(
        "SELECT count(*), array_agg(r)::text FROM (SELECT ROW({})::text AS r FROM {} t WHERE {}{}) rows"
    ).format(
        column_list(row_type, "t", parameters=True),
        identifier(spec.schema, spec.table),
        sql.SQL("true") if keys is None else in_key_list(spec),
        sql.SQL("") if most is None else sql.SQL(" LIMIT {}").format(most + 1),
    )
    return connection.execute(query, () if keys is None else keys.literals)


def insert_rows(connection: Connection, target: Target, rows: str) -> Cursor:
    """Insert the rows of an array literal; identity columns take the values of the rows."""
    query = sql.SQL(
        "INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {values} FROM unnest(%s::{table}[]) r"
    ).format(
        table=identifier(target.spec.schema, target.spec.table),
        columns=column_list(target.columns, parameters=True),
        values=column_list(target.columns, "r", parameters=True),
    )
    return connection.execute(query, (rows,))
