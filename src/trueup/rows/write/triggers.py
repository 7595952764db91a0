"""Silence the triggers of the target."""

from __future__ import annotations

import psycopg

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
