"""COPY rows out of one node and into another, and check that every row arrived."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from psycopg import sql

from trueup.db.connection import Connection
from trueup.db.copy_out import CopyOut
from trueup.errors import TrueupError
from trueup.rows.write.target import Target, column_list


def rows_out(
    columns: Sequence[str], source: sql.Composable, condition: sql.Composable | None = None, *, binary: bool = False
) -> sql.Composed:
    """Return a COPY TO STDOUT of the rows of `source`, which is named `t` in the condition."""
    return sql.SQL("COPY (SELECT {columns} FROM {source} t{where}) TO STDOUT{options}").format(
        columns=column_list(columns, "t"),
        source=source,
        where=sql.SQL(" WHERE {}").format(condition) if condition is not None else sql.SQL(""),
        options=_options(binary),
    )


def rows_in(target: Target, into: sql.Composable | None = None, *, binary: bool = False) -> sql.Composed:
    """Return a COPY FROM STDIN into the target, or into a staging table with its columns.

    COPY writes the values of identity columns as they come, however the columns are declared.
    """
    return copy_into(into if into is not None else target.name, target.columns, binary=binary)


def copy_into(table: sql.Composable, columns: Sequence[str], *, binary: bool = False) -> sql.Composed:
    """Return a COPY FROM STDIN into these columns of a table."""
    return sql.SQL("COPY {} ({}) FROM STDIN{}").format(table, column_list(columns), _options(binary))


def _options(binary: bool) -> sql.SQL:
    return sql.SQL(" (FORMAT binary)" if binary else "")


def pipe(source: Connection, query: sql.Composed, target: Connection, into: sql.Composed) -> int:
    """Send the bytes of one COPY into another and return the number of rows; raise if not all of them arrived."""
    reading = CopyOut(source, query)
    arrived = send_lines(target, into, reading)
    # Both servers count: a row that a trigger dropped must not count as copied.
    check_arrived(reading.rows, arrived)
    return arrived


def send_lines(connection: Connection, into: sql.Composed, lines: Iterable[bytes]) -> int:
    """COPY lines, in pieces of any size, and return the number of rows that arrived."""
    with connection.cursor() as cursor:
        with cursor.copy(into) as sink:
            for data in lines:
                sink.write(data)
        return cursor.rowcount


def send_rows(connection: Connection, into: sql.Composed, rows: Iterable[Sequence[Any]]) -> int:
    """COPY rows of Python values and return the number of rows that arrived."""
    with connection.cursor() as cursor:
        with cursor.copy(into) as sink:
            for row in rows:
                sink.write_row(row)
        return cursor.rowcount


def check_arrived(sent: int, arrived: int, *, node: str = "", table: str = "") -> None:
    """Raise if the target did not store every row that was sent."""
    if sent != arrived:
        raise TrueupError(
            f"{sent} rows were sent and {arrived} arrived",
            cure="a trigger or a rule of the target table drops rows: disable it, or write with triggers silenced",
            node=node,
            table=table,
        )
