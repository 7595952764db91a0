"""Silence the triggers of the target, or run them with the search_path of the application."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
from psycopg import sql

from trueup.db.connection import Connection
from trueup.errors import QueryError


def silence_triggers(connection: Connection) -> bool:
    """Stop ordinary triggers and foreign keys from firing until the current transaction ends.

    Returns False where the role may not set `session_replication_role`; the transaction stays usable then. Triggers
    that are ENABLE ALWAYS or ENABLE REPLICA still fire.
    """
    try:
        with connection.transaction():
            connection.execute("SET LOCAL session_replication_role = replica")
    except psycopg.errors.InsufficientPrivilege:
        return False
    return True


def require_silent_triggers(connection: Connection) -> None:
    """Silence triggers like `silence_triggers`; raise QueryError if the role may not."""
    if not silence_triggers(connection):
        raise QueryError(
            "the role is no longer allowed to set session_replication_role",
            sqlstate="42501",
            cure="GRANT SET ON PARAMETER session_replication_role to the role, and run the command again",
        )


@contextmanager
def application_path(connection: Connection, schemas: Sequence[str] | None) -> Iterator[None]:
    """Run the block with the search_path that a new session of the role has in this database, for triggers that fire.

    `schemas`: with these instead, see `db.own_path`. A statement of the block must name every function, operator and
    type with its schema: a schema of this path may contain other ones for the same names.
    """
    value = sql.SQL("DEFAULT") if schemas is None else sql.SQL(", ").join(map(sql.Literal, schemas or [""]))
    connection.execute(sql.SQL("SET LOCAL search_path TO {}").format(value))
    yield
    # After an error there is nothing to restore: the transaction or its savepoint is rolled back.
    connection.execute("SET LOCAL search_path TO pg_catalog")
