"""Staging tables: temporary tables of the session that hold rows or keys until they are merged into the target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count

from psycopg import sql

from trueup.db.connection import Connection
from trueup.rows.write.copy import rows_in, send_lines
from trueup.rows.write.target import Target, column_list

_numbers = count(1)


def stage(
    connection: Connection, table: sql.Composable, columns: Sequence[str], *, keep: bool = False
) -> sql.Identifier:
    """Create an empty temporary table with these columns of a table and return its name.

    It ends with the transaction; with `keep` it ends with the session, and only its rows end with a transaction.
    """
    name = sql.Identifier("pg_temp", f"trueup_stage_{next(_numbers)}")
    connection.execute(
        sql.SQL("CREATE TEMP TABLE {} ON COMMIT {} AS SELECT {} FROM {} WITH NO DATA").format(
            name, sql.SQL("DELETE ROWS" if keep else "DROP"), column_list(columns), table
        )
    )
    return name


def stage_keys(connection: Connection, target: Target, ids: Iterable[bytes]) -> sql.Identifier:
    """Create a temporary table of keys, given as their ids (see `copy_text.key_id`), and return its name.

    Of a keyless table it has the numbers (see `encode.row_id`) in its column `id`.
    """
    keys = Target(target.spec, target.spec.key_names or ("id",))
    numbers = sql.SQL("(SELECT 0::int8 AS id) numbers")
    staged = stage(connection, numbers if target.spec.is_keyless else keys.name, keys.columns)
    send_lines(connection, rows_in(keys, staged), [b"".join(key + b"\n" for key in ids)])
    return staged
