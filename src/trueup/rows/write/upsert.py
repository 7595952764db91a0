"""Merge a staging table into its target without deleting a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psycopg import sql

from trueup.db.connection import Connection, one_row
from trueup.db.names import display_name
from trueup.errors import TrueupError
from trueup.rows.write.target import Target, column_list, identifier, same_key


def upsert(connection: Connection, target: Target, staged: sql.Composable) -> tuple[int, int]:
    """Update the rows whose key is in the target, insert the others; return the numbers of inserts and updates.

    Needs no unique index on the key. No row is deleted, so rows that refer to the target keep their parents and no
    ON DELETE action fires. Unique values that two rows swap violate their constraint unless it is deferred.
    """
    connection.execute(sql.SQL("ANALYZE {}").format(staged))
    _check_fixed(connection, target, staged)
    # One statement: foreign keys are checked at its end, so its rows may refer to each other. Updates come first,
    # because an inserted row may have a unique value that an updated row had. All missing rows are counted before the
    # first one is inserted: a plan for an empty table would scan the inserted rows again for each row.
    query = sql.SQL(
        "WITH updated AS ({update}), counted AS (SELECT count(*) AS updated FROM updated), missing AS MATERIALIZED ("
        "SELECT {values} FROM {staged} s WHERE NOT EXISTS (SELECT FROM {table} t WHERE {same})), inserted AS ("
        "INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {values} FROM missing s CROSS JOIN counted"
        " CROSS JOIN (SELECT count(*) FROM missing) complete RETURNING 1)"
        " SELECT (SELECT count(*) FROM inserted), updated FROM counted"
    ).format(
        update=_update(target, staged),
        table=target.name,
        columns=column_list(target.columns),
        values=column_list(target.columns, "s"),
        staged=staged,
        same=same_key(target.spec.key_names, "t", "s"),
    )
    inserted, updated = one_row(connection.execute(query))
    return inserted, updated


def _update(target: Target, staged: sql.Composable) -> sql.Composable:
    if not target.updatable:
        return sql.SQL("SELECT WHERE false")
    return sql.SQL("UPDATE {} t SET {} FROM {} s WHERE {} RETURNING 1").format(
        target.name,
        sql.SQL(", ").join(sql.SQL("{0} = s.{0}").format(sql.Identifier(name)) for name in target.updatable),
        staged,
        same_key(target.spec.key_names, "t", "s"),
    )


def _check_fixed(connection: Connection, target: Target, staged: sql.Composable) -> None:
    """Raise if rows differ in an identity column that an UPDATE cannot set."""
    for name in set(target.fixed) - set(target.spec.key_names):
        query = sql.SQL(
            "SELECT 1 FROM {} t JOIN {} s ON {} WHERE t.{column} IS DISTINCT FROM s.{column} LIMIT 1"
        ).format(target.name, staged, same_key(target.spec.key_names, "t", "s"), column=sql.Identifier(name))
        if connection.execute(query).fetchone():
            raise TrueupError(
                f"rows differ in column {name}, which is GENERATED ALWAYS AS IDENTITY: an UPDATE cannot set it",
                cure="let the role set session_replication_role: rows are then deleted and copied, which can set it",
                table=display_name(target.spec.schema, target.spec.table),
            )


def insert_staged_rows(connection: Connection, target: Target, staged: sql.Composable) -> None:
    """Insert all staged rows."""
    connection.execute(
        sql.SQL("INSERT INTO {} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM {}").format(
            target.name, staged, columns=column_list(target.columns)
        )
    )


def insert_missing(connection: Connection, target: Target, staged: sql.Composable) -> None:
    """Insert the staged rows that violate no unique constraint of the target; leave the others out."""
    connection.execute(
        sql.SQL(
            "INSERT INTO {} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM {} ON CONFLICT DO NOTHING"
        ).format(target.name, staged, columns=column_list(target.columns))
    )


def insert_or_update(
    connection: Connection,
    table: sql.Composable,
    staged: sql.Composable,
    *,
    columns: Sequence[str],
    key: Sequence[str],
    updated: Sequence[str],
    constants: Mapping[str, Any],
) -> None:
    """Insert the staged rows; where a row with this key exists, set the `updated` columns instead.

    Needs a unique index over exactly `key`; safe against other sessions that write the same keys. `constants` are
    columns that have the same value in all rows. `table` doubles percent signs.
    """
    query = sql.SQL(
        "INSERT INTO {table} ({columns}, {names}) OVERRIDING SYSTEM VALUE SELECT {columns}, {values} FROM {staged}"
        " ON CONFLICT ({key}) DO UPDATE SET {sets}"
    ).format(
        table=table,
        staged=staged,
        columns=column_list(columns, parameters=True),
        names=column_list(constants, parameters=True),
        values=sql.SQL(", ").join(map(sql.Placeholder, constants)),
        key=column_list(key, parameters=True),
        sets=sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(identifier(name)) for name in updated),
    )
    connection.execute(query, constants)
